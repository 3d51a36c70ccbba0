"""Which KV blocks belong to which slot. No torch here.

A block is ``tokens_per_block`` tokens of the cache, over all layers. Blocks are handed out one at a time; a slot's
logical block ``j`` goes to its *affine* place ``slot * stride + j`` while that is free, so that an attention backend
may see a batch as one strided view. That is a preference: any free block is valid, and the block table is the truth.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import islice

import numpy as np
import numpy.typing as npt

from specbench.errors import BlockAccountingError

Slots = list[int] | npt.NDArray[np.intp]
"""Slots in the order of a batch; an array of them spares its reader the conversion."""

_STAGED_AT_ONCE = 65536
"""Table entries gathered in one go: few enough that they are still in a core's cache when they are written out."""
_CHANGES_KEPT = 4096
"""Changes of the table whose column is remembered: more than a step makes, few enough to look through."""


class BlockManager:
    """Allocates blocks to slots.

    :param num_blocks: blocks in the pool.
    :param num_slots: slots that may own blocks.
    :param blocks_per_sequence: most blocks one slot may own; the width of its table row.
    :param num_padding_blocks: further blocks, behind the pool, that the padding slot (``num_slots``) owns for good.
    :ivar table: [num_slots, blocks_per_sequence] int32, the blocks of each slot in logical order.
    :ivar version: another number whenever a table row has changed.
    """

    def __init__(
        self,
        num_blocks: int,
        num_slots: int,
        blocks_per_sequence: int,
        tokens_per_block: int,
        num_padding_blocks: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self._num_cached_blocks = num_blocks + num_padding_blocks
        self.tokens_per_block = tokens_per_block
        self.blocks_per_sequence = blocks_per_sequence
        self.affine_stride = min(blocks_per_sequence, num_blocks // num_slots)
        self._free = set(range(num_blocks))
        # Falls back to the highest free block, which is the last place an affine slot grows into. Entries taken
        # through their affine place stay in the heap and are skipped when they surface.
        self._descending = [-block for block in range(num_blocks)]
        heapq.heapify(self._descending)
        self._num_owned = [0] * num_slots
        self._rows: npt.NDArray[np.int32] = np.zeros((num_slots + 1, blocks_per_sequence), dtype=np.int32)
        self._rows[num_slots, :num_padding_blocks] = np.arange(num_blocks, self._num_cached_blocks)
        self.table = self._rows[:num_slots]
        self.version = 0
        self._changed_columns: deque[int] = deque(maxlen=_CHANGES_KEPT)

    @property
    def num_free(self) -> int:
        """Blocks nobody owns."""
        return len(self._free)

    def num_owned(self, slot: int) -> int:
        """Blocks ``slot`` owns."""
        return self._num_owned[slot]

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.tokens_per_block)

    def can_grow(self, slot: int, num_tokens: int) -> bool:
        """True when ``slot`` could own enough blocks for ``num_tokens`` tokens now."""
        return self.blocks_for(num_tokens) - self._num_owned[slot] <= len(self._free)

    def grow(self, slot: int, num_tokens: int) -> bool:
        """Give ``slot`` the blocks for ``num_tokens`` tokens, all or none; False when there are too few.

        :raises BlockAccountingError: more tokens than a table row can hold.
        """
        needed = self.blocks_for(num_tokens)
        if needed > self.blocks_per_sequence:
            raise BlockAccountingError(
                f"slot {slot} asks for {needed} blocks, its table holds {self.blocks_per_sequence}"
            )
        if not self.can_grow(slot, num_tokens):
            return False
        for index in range(self._num_owned[slot], needed):
            self.table[slot, index] = self._take(slot * self.affine_stride + index, index)
            self._num_owned[slot] = index + 1
            self._note_change(index)
        return True

    def _note_change(self, column: int) -> None:
        """Count a change of the table; nothing left of ``column`` has changed."""
        self.version += 1
        self._changed_columns.append(column)

    def first_changed_column(self, since: int) -> int:
        """Columns of the table left of this one are what they were at version ``since``, for every slot.

        :return: :attr:`blocks_per_sequence` when nothing has changed; 0 when that is not known.
        """
        num_changes = self.version - since
        if not 0 <= num_changes <= len(self._changed_columns):
            return 0
        return min(islice(reversed(self._changed_columns), num_changes), default=self.blocks_per_sequence)

    def _take(self, affine: int, index: int) -> int:
        if index < self.affine_stride and affine in self._free:
            self._free.remove(affine)
            return affine
        while True:
            block = -heapq.heappop(self._descending)
            if block in self._free:
                self._free.remove(block)
                return block

    def release(self, slot: int) -> None:
        """Take back every block of ``slot``."""
        for block in self.table[slot, : self._num_owned[slot]].tolist():
            if block in self._free:
                raise BlockAccountingError(f"block {block} of slot {slot} is free already")
            self._free.add(block)
            heapq.heappush(self._descending, -block)
        self.table[slot, :] = 0
        self._num_owned[slot] = 0
        self._note_change(0)
        if len(self._descending) > 4 * self.num_blocks:
            self._descending = [-block for block in self._free]
            heapq.heapify(self._descending)

    def num_columns(self, max_kv_len: int | None = None) -> int:
        """Columns of a table row that hold ``max_kv_len`` tokens; None: all that it has."""
        if max_kv_len is None:
            return self.blocks_per_sequence
        return min(self.blocks_for(max_kv_len), self.blocks_per_sequence)

    def write_block_offsets(
        self, offsets: npt.NDArray[np.int32], slots: Slots, max_kv_len: int | None = None, first_column: int = 0
    ) -> None:
        """Write where the blocks of ``slots`` lie in a layer's cache: their keys, and as many blocks further, values.

        :param offsets: [len(slots), 2, num_columns(max_kv_len) - first_column], filled; what stands past a slot's own
            blocks means nothing.
        :param max_kv_len: no more tokens of a slot are read; None: every column is written.
        :param first_column: columns left of it are left out.
        """
        columns = slice(first_column, self.num_columns(max_kv_len))
        num_rows = max(1, _STAGED_AT_ONCE // (columns.stop - columns.start))
        rows = np.asarray(slots, dtype=np.intp)
        for start in range(0, len(slots), num_rows):
            blocks = self._rows[rows[start : start + num_rows], columns]
            offsets[start : start + num_rows, 0] = blocks
            np.add(blocks, self._num_cached_blocks, out=offsets[start : start + num_rows, 1])

    def check(self) -> None:
        """Balance the books.

        :raises BlockAccountingError: a block is owned twice, lost, or owned and free.
        """
        owned = [block for slot, count in enumerate(self._num_owned) for block in self.table[slot, :count].tolist()]
        if len(set(owned)) != len(owned):
            raise BlockAccountingError("a block is owned twice")
        if not self._free.isdisjoint(owned):
            raise BlockAccountingError("a block is owned and free at once")
        if len(owned) + len(self._free) != self.num_blocks:
            raise BlockAccountingError(
                f"{len(owned)} owned and {len(self._free)} free blocks do not make {self.num_blocks}"
            )
