"""Runtime operators: opaque calls of a recording, made again at every replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from specbench.device.recording import CallNames, record, runtime_operator
from specbench.errors import EngineError


def numbers(*shape: int, start: int = 0) -> Tensor:
    """Small whole float32 numbers, all different."""
    count = int(torch.Size(shape).numel())
    return torch.arange(start, start + count, dtype=torch.float32).view(shape)


class Found(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Described:
    rows: Tensor
    width: int
    parts: tuple[Tensor, ...] = ()


class Operators:
    """Methods as operators, with a state of their own."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @runtime_operator("prepare")
    def prepare(self, description: Described) -> None:
        self.calls.append("prepare")
        self.kept = description.rows[: int(description.rows[0]) + 1]

    @runtime_operator("attend")
    def attend(self, layer: int, q: Tensor, *, scale: float = 1.0) -> Tensor:
        self.calls.append(f"attend {layer}")
        return self.double(q).sum() * scale + self.kept.sum()

    @runtime_operator("double")
    def double(self, x: Tensor) -> Tensor:
        return x * 2


class TestRuntimeOperators:
    def test_they_look_at_values_and_branch_at_every_replay(self) -> None:
        @runtime_operator("choose")
        def choose(x: Tensor) -> Tensor:
            return x + 100 if x.sum().item() > 3 else x - 100

        x = numbers(2)
        recording = record(lambda: choose(x * 1) + 1)
        assert recording.operators == ("mul", "choose", "add")
        x.fill_(5)
        assert recording.replay().tolist() == [106, 106]

    def test_methods_keep_their_object_and_nested_ones_are_part_of_the_outer(self) -> None:
        operators, x = Operators(), numbers(3)

        def layer(hidden: Tensor) -> Tensor:
            return operators.attend(3, hidden, scale=0.5) + hidden

        def program() -> Tensor:
            operators.prepare(Described(x + 1, 4))
            return layer(x + 0)

        recording = record(program)
        assert recording.operators == ("add", "prepare", "add", "attend", "add")
        operators.calls.clear()
        x.copy_(torch.tensor([1.0, 0.0, 7.0]))
        found = recording.replay()
        assert operators.calls == ["prepare", "attend 3"]
        with torch.inference_mode():
            assert torch.equal(found, program())

    @pytest.mark.parametrize(
        "form", [tuple, list, lambda parts: {"a": parts[0], "b": parts[1]}, lambda parts: Found(*parts)]
    )
    def test_tensors_in_containers_are_those_of_the_replay(self, form: Callable[[tuple[Tensor, ...]], Any]) -> None:
        kinds: list[type] = []

        @runtime_operator("total")
        def total(parts: Any) -> Tensor:
            kinds.append(type(parts))
            return torch.stack(list(parts.values() if isinstance(parts, dict) else parts)).sum(0)

        x = numbers(2)
        recording = record(lambda: total(form((x + 1, x))))
        x.fill_(3)
        assert recording.replay().tolist() == [7, 7]
        assert kinds[0] is kinds[1]

    def test_tensors_in_a_description_are_those_of_the_replay_and_its_numbers_those_of_the_recording(self) -> None:
        @runtime_operator("read")
        def read(description: Described) -> Tensor:
            return description.rows * description.width + description.parts[0]

        x, width = numbers(2), [10]
        recording = record(lambda: read(Described(x + 0, width[0], (x + 1,))))
        x.fill_(1)
        width[0] = 20
        assert recording.replay().tolist() == [12, 12]

    def test_results_may_be_tuples_named_or_not_or_none(self) -> None:
        @runtime_operator("pair")
        def pair(x: Tensor) -> Found:
            return Found(x + 1, x + 2)

        @runtime_operator("one")
        def one(x: Tensor) -> tuple[Tensor]:
            return (x * 3,)

        @runtime_operator("write")
        def write(x: Tensor) -> None:
            x.add_(1)

        x = numbers(2)

        def program() -> Tensor:
            found = pair(x)
            write(found.first)
            return found.first + found.second + one(x)[0]

        recording = record(program)
        assert recording.operators == ("pair", "write", "add", "one", "add")
        x.fill_(10)
        assert recording.replay().tolist() == [54, 54]

    def test_an_operator_that_returns_its_argument(self) -> None:
        @runtime_operator("clamp_lens")
        def clamp_lens(lens: Tensor) -> Tensor:
            return lens.clamp_(max=2)

        lens = torch.tensor([1, 5])
        recording = record(lambda: clamp_lens(lens) + lens)
        lens.copy_(torch.tensor([7, 0]))
        assert recording.replay().tolist() == [4, 0]
        assert lens.tolist() == [2, 0]

    def test_one_without_tensors_runs_at_every_replay_in_its_place(self) -> None:
        marks: list[str] = []

        @runtime_operator("mark")
        def mark(name: str) -> None:
            marks.append(name)

        x = numbers(2)

        def program() -> None:
            mark("before")
            x.add_(1)
            mark("after")

        recording = record(program)
        assert recording.operators == ("mark", "add_", "mark")
        recording.replay()
        assert marks == ["before", "after"] * 2

    def test_a_name_is_no_more_than_a_name(self) -> None:
        """Even that of a function whose calls are made once, or left out."""
        drawn = [1.0]

        @runtime_operator("tensor")
        def tensor() -> Tensor:
            return torch.tensor(drawn)

        x = numbers(1)

        def program() -> Tensor:
            tensor()
            return x + tensor()

        recording = record(program)
        assert recording.operators == ("tensor", "tensor", "add")
        drawn[0] = 4.0
        assert recording.replay().tolist() == [4]

    @pytest.mark.parametrize("value", [0, (1, 2), "x"])
    def test_results_without_tensors_are_refused(self, value: object) -> None:
        @runtime_operator("value")
        def get() -> object:
            return value

        with pytest.raises(EngineError, match="found a result of type"):
            record(get)

    def test_other_results_are_refused(self) -> None:
        @runtime_operator("count")
        def count(x: Tensor) -> int:
            return int(x.sum())

        with pytest.raises(EngineError, match="result of type int") as caught:
            record(lambda: count(numbers(2)))
        assert caught.value.where == "operator count"

    def test_outside_a_recording_they_are_what_they_were(self) -> None:
        @runtime_operator("name")
        def documented(x: int) -> int:
            """What it does."""
            return x + 1

        assert documented(1) == 2
        assert documented.__doc__ == "What it does."
        assert documented.__name__ == "documented"

    def test_an_operator_that_fails_leaves_the_next_recording_whole(self) -> None:
        @runtime_operator("fail")
        def fail(x: Tensor) -> None:  # noqa: ARG001
            raise ValueError("broken operator")

        x = numbers(2)
        with pytest.raises(ValueError, match="broken operator"):
            record(lambda: fail(x))
        recording = record(lambda: x + 1)
        assert recording.operators == ("add",)


def test_where_calls_are_only_named_an_operator_is_named_before_what_it_does() -> None:
    @runtime_operator("draw")
    def draw(x: Tensor) -> Tensor:
        return x.mul(2)

    x = numbers(3)
    with CallNames() as names:
        result = draw(x.add(1))
    assert names.operators == ["add", "draw", "mul"]
    assert result.tolist() == [2.0, 4.0, 6.0]
    draw(x)
    assert names.operators == ["add", "draw", "mul"]
