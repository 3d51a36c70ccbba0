"""Sampling parameters kept on the device by slot; the device itself gathers a row for each logits row.

The host sends a slot's parameters when a request takes the slot or its values change, and which slot stands behind
each logits row when the batch or its row counts change. Both are remembered, so that a steady step sends nothing. Every
sampled step enqueues one small program: it puts what was sent into the table by slot, then fills the expanded buffers
by three ``index_select`` over that table.

Nothing waits. The program is enqueued behind the copies it reads and ahead of the step that reads the rows, and the
device executes in order; a step that is still waiting runs before the rows are filled anew. What a copy reads is a
tensor made for that copy alone, because it is read when the copy executes.

The buffers by request are left as they are: the table by slot stands in their place. An all-greedy step reads no
parameters, so nothing is sent or gathered for it, and a slot may hold values of a request that has left it; they are
replaced when a sampled step next has the slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from specbench.device.base import Device
from specbench.engine.config import EngineConfig
from specbench.engine.sampling.buffers import FillCounters, SamplingBuffers, SlotTables
from specbench.engine.sampling.metadata import NormalizedParams, SamplingRows
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.step_params import ParamsReader, StepParams

GATHER = "gather_sampling_params"
"""Range of the gathering program on the device lane."""

Launch = Callable[[Callable[[], None], str], object]
"""Enqueues a device program under a name: :meth:`specbench.device.base.Device.launch`."""


@dataclass
class GatherCounters(FillCounters):
    """See :class:`FillCounters`.

    :ivar gathers: device programs that filled the expanded buffers, one a sampled step.
    """

    gathers: int = 0


class Gathering(NamedTuple):
    """A steady step: what it is for, what the sampler is given, and the program that fills it."""

    step: StepParams
    slots: list[int]
    rows: SamplingRows
    program: Callable[[], None]


@dataclass
class SlotContents:
    """What the host knows of the tables by slot.

    :ivar tables: that all of this is about: other tables hold something else. None: nothing is known.
    :ivar values: slot -> what lies there. A slot that is missing may hold anything.
    :ivar index: slots and row counts that the index by row was made from; None: it may hold anything.
    :ivar last: the last sampled step, which the tables are ready for; None: they are ready for none.
    """

    tables: SlotTables | None = None
    values: dict[int, NormalizedParams] = field(default_factory=dict)
    index: tuple[list[int], tuple[int, ...]] | None = None
    last: Gathering | None = None

    def clear(self) -> None:
        """Forget everything."""
        self.tables = self.index = self.last = None
        self.values = {}

    def find_ready(self, tables: SlotTables, step: StepParams, slots: list[int]) -> Gathering | None:
        """The last step, where this one needs nothing sent. Equal steps are one object: see :class:`ParamsReader`."""
        last = self.last
        if last is not None and self.tables is tables and last.step is step and last.slots == slots:
            return last
        return None


class DeviceGatherSamplingParams:
    """Variant ``device_gather`` of the choice point ``sampling_params``.

    A shallow copy is another view of the same tables and shares ``contents``: what either sends is known to both.

    :param buffers: shared with the other variants of the engine. A view may be given buffers of its own; the contents
        name the tables they are about.
    """

    def __init__(self, buffers: SamplingBuffers, launch: Launch) -> None:
        self.buffers = buffers
        self.contents = SlotContents()
        self.counters = GatherCounters()
        self._launch = launch
        self._reader = ParamsReader()

    def activate(self) -> None:
        """Forget what the tables hold: another variant may have written them."""
        self.contents.clear()

    def read_counters(self) -> dict[str, int]:
        """See :class:`GatherCounters`."""
        return asdict(self.counters)

    def fill(
        self, params: Sequence[SamplingParams], row_counts: Sequence[int], slots: Sequence[int] | None = None
    ) -> SamplingRows:
        """See :class:`~specbench.engine.optimizations.choice_points.SamplingParamsFill`.

        An all-greedy step touches nothing.

        :param slots: None: each request has the slot of its place in the step.
        :raises ValueError: lengths differ, or requests of one slot have unequal values.
        """
        step = self._reader.read(params, row_counts)
        if step.all_greedy:
            self.counters.skips += 1
            return self.buffers.view(step.facts)
        places = list(range(len(params)) if slots is None else slots)
        ready = self.contents.find_ready(self.buffers.slots, step, places)
        if ready is None:
            return self._send(step, places)
        self.counters.hits += 1
        self._enqueue(ready.program)
        return ready.rows

    def _enqueue(self, program: Callable[[], None]) -> None:
        self.counters.gathers += 1
        self._launch(program, GATHER)

    def _send(self, step: StepParams, slots: list[int]) -> SamplingRows:
        """Copy what the tables lack for a step, and gather its rows."""
        tables, contents, rows = self.buffers.slots, self.contents, self.buffers.view(step.facts)
        wanted = _values_by_slot(slots, step.values)
        if contents.tables is not tables:
            contents.clear()
            contents.tables = tables
        contents.last = None  # should something fail half-way
        changed = {slot: values for slot, values in wanted.items() if contents.values.get(slot) != values}
        if changed:
            self._copy_records(tables, changed)
        is_indexed = contents.index == (slots, step.row_counts)
        if not is_indexed:
            self._copy_index(tables, step, slots)

        def gather() -> None:
            tables.gather(rows)

        def write_and_gather() -> None:
            tables.write(len(changed))
            tables.gather(rows)

        self._enqueue(write_and_gather if changed else gather)
        contents.values.update(changed)
        contents.last = Gathering(step, slots, rows, gather)
        if changed or not is_indexed:
            self.counters.fills += 1
        else:
            self.counters.hits += 1
        return rows

    def _copy_records(self, tables: SlotTables, changed: dict[int, NormalizedParams]) -> None:
        for slot in changed:  # should the rest fail, nobody knows what they hold
            self.contents.values.pop(slot, None)
        self.counters.appends += 4 * len(changed)  # slot, temperature, top_k, top_p
        self.buffers.copy(tables.records, tables.pack(changed), self.counters)

    def _copy_index(self, tables: SlotTables, step: StepParams, slots: list[int]) -> None:
        """Say which slot each row takes. Rows are laid out by numpy: a list of them would cost what a refill costs."""
        self.contents.index = None
        row_slots = np.repeat(np.array(slots, dtype=np.int64), np.array(step.row_counts, dtype=np.int64))
        self.buffers.copy(tables.row_slots, torch.from_numpy(row_slots), self.counters)
        self.contents.index = (slots, step.row_counts)


def _values_by_slot(slots: list[int], values: Sequence[NormalizedParams]) -> dict[int, NormalizedParams]:
    wanted = dict(zip(slots, values, strict=True))
    if len(wanted) < len(slots) and any(wanted[slot] != found for slot, found in zip(slots, values, strict=True)):
        raise ValueError("requests of one slot have unequal sampling parameters")
    return wanted


def build_device_gather(config: EngineConfig, device: Device, buffers: SamplingBuffers) -> DeviceGatherSamplingParams:  # noqa: ARG001
    """Build the variant for an engine."""
    return DeviceGatherSamplingParams(buffers, device.launch)
