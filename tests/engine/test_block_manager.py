"""The books of the block manager balance whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specbench.engine.block_manager import BlockManager
from specbench.errors import BlockAccountingError

NUM_SLOTS = 4


class BlockMachine(RuleBasedStateMachine):
    """Grows and releases slots at random against a model that only counts."""

    @initialize(num_blocks=st.integers(1, 40), width=st.integers(1, 12), tokens_per_block=st.integers(1, 8))
    def build(self, num_blocks: int, width: int, tokens_per_block: int) -> None:
        self.manager = BlockManager(num_blocks, NUM_SLOTS, width, tokens_per_block)
        self.owned = [0] * NUM_SLOTS

    @rule(slot=st.integers(0, NUM_SLOTS - 1), num_tokens=st.integers(0, 96))
    def grow(self, slot: int, num_tokens: int) -> None:
        needed = -(-num_tokens // self.manager.tokens_per_block)
        if needed > self.manager.blocks_per_sequence:
            with pytest.raises(BlockAccountingError):
                self.manager.grow(slot, num_tokens)
            return
        fits = needed - self.owned[slot] <= self.manager.num_blocks - sum(self.owned)
        assert self.manager.grow(slot, num_tokens) == fits
        if fits:
            self.owned[slot] = max(self.owned[slot], needed)

    @rule(slot=st.integers(0, NUM_SLOTS - 1))
    def release(self, slot: int) -> None:
        self.manager.release(slot)
        self.owned[slot] = 0

    @invariant()
    def balanced(self) -> None:
        self.manager.check()
        assert [self.manager.num_owned(slot) for slot in range(NUM_SLOTS)] == self.owned
        assert self.manager.num_free == self.manager.num_blocks - sum(self.owned)


@given(
    st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), st.integers(0, 10)), max_size=30),
    st.integers(0, 30),
)
def test_columns_left_of_the_first_changed_one_are_as_they_were(changes: list[tuple[int, int]], start: int) -> None:
    manager = BlockManager(NUM_SLOTS * 10, NUM_SLOTS, 10, 1)
    since, before = manager.version, manager.table.copy()
    for number, (slot, num_tokens) in enumerate(changes):
        if number == start:
            since, before = manager.version, manager.table.copy()
        if num_tokens:
            manager.grow(slot, num_tokens)
        else:
            manager.release(slot)
    first = manager.first_changed_column(since)
    assert (manager.table[:, :first] == before[:, :first]).all()
    if manager.version == since:
        assert first == manager.blocks_per_sequence


def test_the_first_changed_column_is_that_of_a_new_block() -> None:
    manager = BlockManager(NUM_SLOTS * 10, NUM_SLOTS, 10, 1)
    manager.grow(0, 7)
    manager.grow(1, 4)
    since = manager.version
    manager.grow(0, 9)
    assert manager.first_changed_column(since) == 7
    manager.grow(1, 5)
    assert manager.first_changed_column(since) == 4
    manager.release(0)
    assert manager.first_changed_column(since) == 0
    assert manager.first_changed_column(manager.version + 1) == 0, "a version that is yet to come says nothing"


def test_changes_that_are_long_past_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.engine.block_manager._CHANGES_KEPT", 3)
    manager = BlockManager(NUM_SLOTS * 10, NUM_SLOTS, 10, 1)
    manager.grow(0, 5)
    assert manager.first_changed_column(manager.version - 3) == 2
    assert manager.first_changed_column(manager.version - 4) == 0


TestBlockMachine = BlockMachine.TestCase


@given(st.lists(st.integers(0, NUM_SLOTS - 1), min_size=1, max_size=60))
def test_a_full_size_pool_is_always_affine(order: list[int]) -> None:
    manager = BlockManager(NUM_SLOTS * 5, NUM_SLOTS, 5, 1)
    lengths = [0] * NUM_SLOTS
    for slot in order:
        if lengths[slot] == 5:
            manager.release(slot)
            lengths[slot] = 0
        lengths[slot] += 1
        assert manager.grow(slot, lengths[slot])
        assert manager.table[slot, : lengths[slot]].tolist() == [slot * 5 + j for j in range(lengths[slot])]


def test_growing_is_all_or_nothing() -> None:
    manager = BlockManager(3, 2, 4, 2)
    assert manager.grow(0, 2)
    assert not manager.grow(1, 8)
    assert manager.num_owned(1) == 0
    assert manager.num_free == 2


def test_check_sees_a_block_owned_twice() -> None:
    manager = BlockManager(4, 2, 2, 1)
    manager.grow(0, 1)
    manager.grow(1, 1)
    manager.table[1, 0] = manager.table[0, 0]
    with pytest.raises(BlockAccountingError, match="owned twice"):
        manager.check()


def test_check_sees_a_lost_block() -> None:
    manager = BlockManager(4, 2, 2, 1)
    manager.grow(0, 2)
    manager._num_owned[0] = 1
    with pytest.raises(BlockAccountingError, match="do not make 4"):
        manager.check()
