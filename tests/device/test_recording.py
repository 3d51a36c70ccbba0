"""A recording does what its program would do now, with the branches that the program took then."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from call_counts import count_calls
from torch import Tensor

from specbench.device.recording import record, runtime_operator


def numbers(*shape: int, start: int = 0) -> Tensor:
    """Small whole float32 numbers, all different."""
    count = int(torch.Size(shape).numel())
    return torch.arange(start, start + count, dtype=torch.float32).view(shape)


class TestReplay:
    def test_buffers_are_read_anew(self) -> None:
        x, y, out = numbers(4), numbers(4), torch.zeros(4)
        recording = record(lambda: out.copy_(x * 2 + y))
        assert out.tolist() == [0, 3, 6, 9]
        x.fill_(10)
        recording.replay()
        assert out.tolist() == [20, 21, 22, 23]
        assert recording.operators == ("mul", "add", "copy_")

    def test_a_branch_of_the_host_stays_as_it_was_taken(self) -> None:
        x, flag = numbers(3), [True]
        recording = record(lambda: x + 1 if flag[0] else x - 1)
        flag[0] = False
        assert recording.replay().tolist() == [1, 2, 3]
        assert recording.operators == ("add",)

    def test_a_number_stays_and_a_tensor_does_not(self) -> None:
        class Settings:
            number = 2.0
            tensor = torch.tensor(2.0)

        x, held = numbers(3, start=1), Settings()
        by_number, by_tensor = record(lambda: x * held.number), record(lambda: x * held.tensor)
        held.number = 5.0
        held.tensor.fill_(5)
        assert by_number.replay().tolist() == [2, 4, 6]
        assert by_tensor.replay().tolist() == [5, 10, 15]

    def test_writes_in_place_are_made_again(self) -> None:
        state, rows = numbers(4, 3), torch.tensor([1, 3])

        def program() -> None:
            state[rows] += 1
            state[0, 1:].mul_(2)
            state.index_copy_(0, rows, state[rows] * 3)
            torch.add(state[2], 1, out=state[2])

        eager, again = state.clone(), state.clone()
        recording = record(program)
        assert torch.equal(state, applied(program, eager, state))
        state.copy_(again)
        recording.replay()
        assert torch.equal(state, eager)

    def test_a_result_keeps_its_identity_through_in_place_calls(self) -> None:
        x = numbers(3)

        def program() -> tuple[Tensor, Tensor]:
            first = x + 1
            same = first.add_(1)
            view = same.view(3, 1)
            view.mul_(2)
            return first, same

        recording = record(program)
        x.fill_(0)
        first, same = recording.replay()
        assert first is same
        assert first.tolist() == [4, 4, 4]

    def test_tuples_are_taken_apart_and_put_together(self) -> None:
        x = torch.tensor([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]])

        def program() -> Tensor:
            values, indices = x.topk(2)
            left, right = (x + 0).split_with_sizes((1, 2), 1)
            parts = torch.stack([values, right]).unbind(0)
            return torch.cat([*parts, indices.float(), left], dim=1)

        recording = record(program)
        x.copy_(x.flip(1))
        assert torch.equal(recording.replay(), program())

    def test_indices_may_hold_tensors_made_by_the_program(self) -> None:
        table, slots = numbers(4, 5), torch.tensor([2, 0])

        def program() -> Tensor:
            rows = slots + 1
            table[rows.unsqueeze(1), torch.arange(2)] = -1.0
            return table[rows, 1:]

        recording = record(program)
        table.copy_(numbers(4, 5, start=7))
        slots.copy_(torch.tensor([0, 1]))
        found = recording.replay()
        assert found.tolist() == [[-1, 14, 15, 16], [-1, 19, 20, 21]]

    def test_a_getter_of_a_property_is_a_call(self) -> None:
        x = numbers(2, 3)
        recording = record(lambda: (x + 1).T + x.T)
        x.fill_(3)
        assert recording.operators == ("add", "T", "add")
        assert recording.replay().tolist() == [[7, 7]] * 3

    def test_a_call_that_returns_nothing_is_made_again(self) -> None:
        x = torch.ones(1)
        recording = record(lambda: torch._assert_async(x))
        x.fill_(0)
        with pytest.raises(RuntimeError):
            recording.replay()

    def test_host_lists_are_taken_as_they_were(self) -> None:
        x, sizes, tokens = numbers(6), [2, 4], [1, 2]

        def program() -> tuple[Tensor, Tensor]:
            return (x + 1).split(sizes)[0], torch.tensor(tokens)

        recording = record(program)
        sizes[:] = [3, 3]
        tokens[:] = [8, 9]
        part, made = recording.replay()
        assert part.tolist() == [1, 2]
        assert made.tolist() == [1, 2]

    def test_a_host_array_is_taken_as_it_was(self) -> None:
        array = np.array([1, 2])

        def program() -> tuple[Tensor, Tensor]:
            shared = torch.as_tensor(array)
            return shared + 0, shared[1:] * 2

        recording = record(program)
        array[:] = 9
        whole, part = recording.replay()
        assert whole.tolist() == [1, 2]
        assert part.tolist() == [4]

    def test_it_runs_in_inference_mode_wherever_it_is_called(self) -> None:
        x = numbers(2)
        recording = record(lambda: x + 1)
        assert recording.replay().is_inference()
        assert not torch.is_inference_mode_enabled()

    def test_what_the_program_raises_is_raised(self) -> None:
        def program() -> None:
            raise ValueError("broken step")

        with pytest.raises(ValueError, match="broken step"):
            record(program)
        x = numbers(2)
        assert record(lambda: x + 1).operators == ("add",)  # nothing is left of it


def applied(program: Callable[[], Any], inputs: Tensor, state: Tensor) -> Tensor:
    """``inputs`` after ``program``, which works on ``state``."""
    kept = state.clone()
    state.copy_(inputs)
    with torch.inference_mode():
        program()
    inputs.copy_(state)
    state.copy_(kept)
    return inputs


class TestFolding:
    """What is the same at every replay is made once; nothing else is."""

    def test_views_of_buffers_are_arguments(self) -> None:
        x, out = numbers(4, 6), torch.zeros(2, 3)

        def program() -> None:
            left, _ = x[1:3].split(3, dim=1)
            out.copy_(left.t().contiguous().t())

        recording = record(program)
        assert recording.operators == ("contiguous", "t", "copy_")
        x.copy_(numbers(4, 6, start=100))
        recording.replay()
        assert out.tolist() == x[1:3, :3].tolist()

    def test_a_view_by_a_tensor_is_taken_anew(self) -> None:
        """A tensor of no dimension as an index gives a view, of whatever row it names."""
        x, row = numbers(3, 2), torch.tensor(0)
        recording = record(lambda: x[row] + 0)
        row.fill_(2)
        assert recording.replay().tolist() == [4, 5]

    def test_what_is_made_of_numbers_alone_is_made_once(self) -> None:
        x = numbers(3)
        recording = record(lambda: x + (torch.arange(3) * 2 + torch.tensor([1, 0, 0])).unsqueeze(0)[0])
        assert recording.operators == ("add",)
        x.fill_(0)
        assert recording.replay().tolist() == [1, 2, 4]

    @pytest.mark.parametrize("factory", [lambda: torch.zeros(3), lambda: torch.tensor([0.0, 0.0, 0.0])])
    def test_what_is_written_to_is_made_again(self, factory: Callable[[], Tensor]) -> None:
        x = numbers(3)

        def program() -> Tensor:
            total = factory()
            total.view(1, 3)[0].add_(x)
            return total.clone()

        recording = record(program)
        assert recording.replay().tolist() == recording.replay().tolist() == [0, 1, 2]

    def test_what_an_operator_gets_is_made_again(self) -> None:
        @runtime_operator("fill")
        def fill(values: Tensor) -> None:
            values.add_(1)

        def program() -> Tensor:
            values = torch.zeros(2)
            fill(values)
            return values + 0

        recording = record(program)
        assert recording.replay().tolist() == recording.replay().tolist() == [1, 1]

    def test_what_is_returned_is_made_again(self) -> None:
        recording = record(lambda: torch.zeros(2))
        with torch.inference_mode():
            recording.replay().fill_(9)
        assert recording.replay().tolist() == [0, 0]

    def test_shapes_of_run_time_tensors_are_no_reads(self) -> None:
        x = numbers(3)
        recording = record(lambda: x + torch.ones_like(x * 2))
        assert recording.operators == ("add",)
        x.fill_(4)
        assert recording.replay().tolist() == [5, 5, 5]

    def test_what_a_buffer_goes_into_is_no_constant(self) -> None:
        x = numbers(2)
        recording = record(lambda: torch.arange(2) + x)
        x.fill_(5)
        assert recording.replay().tolist() == [5, 6]

    def test_what_a_registered_operator_may_write_to_is_made_again(self) -> None:
        x = numbers(2, start=1)

        def program() -> Tensor:
            total = torch.zeros(2)
            torch.ops.aten.add_(total, x)
            torch.ops.aten.add_.Tensor(total, x)
            return total * 1

        recording = record(program)
        assert recording.operators == ("zeros", "add_", "add_", "mul")
        assert recording.replay().tolist() == recording.replay().tolist() == [2, 4]

    def test_random_numbers_are_drawn_anew(self) -> None:
        recording = record(lambda: torch.rand(8) + 0)
        assert recording.replay().tolist() != recording.replay().tolist()

    def test_unread_calls_are_left_out_and_writes_are_not(self) -> None:
        x = numbers(3)

        def program() -> Tensor:
            x.unsqueeze(0).mul(2)
            x.add_(1)
            return x - 1

        recording = record(program)
        assert recording.operators == ("add_", "sub")


class TestBrokenOnPurpose:
    """What the rules above rest on, taken away: the replays are then wrong, so the tests can fail."""

    def test_a_result_taken_for_a_view_stays_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("specbench.device.recording.share_memory", lambda one, other: True)  # noqa: ARG005
        x = numbers(2)
        recording = record(lambda: x * 2 + 1)
        x.fill_(5)
        assert recording.replay().tolist() == [1, 3]

    def test_a_write_that_is_not_seen_adds_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("specbench.device.recording.written_tensors", lambda *call: [])  # noqa: ARG005
        x = numbers(2, start=1)
        recording = record(lambda: torch.zeros(2).add_(x) * 1)
        assert [recording.replay().tolist() for _ in range(2)] == [[2, 4], [3, 6]]


class TestMemory:
    def test_a_recording_keeps_buffers_and_nothing_that_the_program_made(self) -> None:
        seen: list[weakref.ref[Tensor]] = []
        x = numbers(1000)
        buffer = weakref.ref(x)

        def program(x: Tensor) -> None:
            made = x * 2
            seen.append(weakref.ref(made))
            x.add_(made)

        recording = record(lambda x=x: program(x))
        assert seen[0]() is None
        del x
        gc.collect()
        assert buffer() is not None
        recording.replay()
        del recording
        assert buffer() is None  # by count of references: there is no cycle

    def test_a_replay_frees_a_result_after_its_last_use(self) -> None:
        alive: list[bool] = []
        held: list[weakref.ref[Tensor]] = []

        @runtime_operator("hold")
        def hold(x: Tensor) -> Tensor:
            held.append(weakref.ref(x))
            return x + 1

        @runtime_operator("look")
        def look(x: Tensor) -> None:  # noqa: ARG001
            alive.append(held[-1]() is not None)

        x = numbers(3)

        def program() -> None:
            look(hold(x * 2) * 2)

        recording = record(program)
        recording.replay()
        assert alive == [False, False]


class Layer:
    """As much Python around its calls as a layer of a model has."""

    def __init__(self, weights: Tensor, widths: list[int]) -> None:
        self._weights = weights
        self._widths = widths

    def forward(self, rows: Described, hidden: Tensor) -> Tensor:
        product = self._product(self._normalize(hidden), len(rows.tokens))
        left, right = product.split_with_sizes(self._widths, 1)
        return F.silu(left).mul_(right).repeat(1, 2).add_(hidden)

    def _normalize(self, hidden: Tensor) -> Tensor:
        return hidden / torch.linalg.vector_norm(hidden, 2, -1, True)

    def _product(self, hidden: Tensor, num_rows: int) -> Tensor:
        return torch.mm(hidden.view(num_rows, -1), self._weights[:, : sum(self._widths)])


@dataclass(frozen=True)
class Described:
    """What a step describes itself by."""

    tokens: Tensor
    positions: Tensor

    @classmethod
    def of(cls, buffer: Tensor, num_rows: int) -> Described:
        return cls(buffer[0, :num_rows], buffer[1, :num_rows])


def test_a_replay_calls_less_than_its_program() -> None:
    """Python is what a replay saves; of operators it has as many."""
    source = torch.Generator().manual_seed(0)
    layers = [Layer(torch.randn(64, 128, generator=source), [32, 32]) for _ in range(8)]
    buffer, x = torch.zeros(2, 16, dtype=torch.int64), numbers(4, 64)

    def program() -> Tensor:
        rows = Described.of(buffer, 4)
        hidden = x + rows.positions.unsqueeze(1)
        for layer in layers:
            hidden = layer.forward(rows, hidden)
        return hidden

    recording = record(program)
    with torch.inference_mode():
        assert torch.equal(program(), recording.replay())
        replayed, eager = count_calls(recording.replay), count_calls(program)
    assert len(recording.operators) <= replayed < 0.8 * eager
