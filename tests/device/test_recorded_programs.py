"""Programs drawn at random: their replays equal them to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.device.operator_kinds import share_memory
from specbench.device.recording import record, runtime_operator

SIZE = 4
"""Programs work on [SIZE, SIZE] float32 buffers, and row numbers [SIZE]."""


@dataclass
class Buffers:
    values: list[Tensor]
    rows: Tensor
    mask: Tensor

    @classmethod
    def draw(cls, seed: int) -> Buffers:
        source = torch.Generator().manual_seed(seed)
        values = [torch.randn(SIZE, SIZE, generator=source) for _ in range(3)]
        rows = torch.randperm(SIZE, generator=source)
        return cls(values, rows, torch.rand(SIZE, SIZE, generator=source) > 0.5)

    def assign(self, other: Buffers) -> None:
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            mine.copy_(theirs)

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.values, self.rows, self.mask]


def _negate(x: Tensor) -> Tensor:
    return -x if x.sum().item() > 0 else x.mul(0.5)


negate = runtime_operator("negate")(_negate)


def unary(buffers: Buffers) -> dict[str, Callable[[Tensor], Tensor]]:
    return {
        "mul_number": lambda x: x * 0.5,
        "transpose": lambda x: x.t(),
        "view": lambda x: x.reshape(-1).view(SIZE, SIZE),
        "gather": lambda x: x.gather(1, buffers.rows.expand(SIZE, -1)),
        "index": lambda x: x[buffers.rows],
        "split": lambda x: torch.stack(x.split(1)[::-1], dim=1).view(SIZE, SIZE),
        "topk": lambda x: x.topk(SIZE, dim=-1).values,
        "fresh": lambda x: torch.zeros(SIZE, SIZE).add_(x),
        "constant": lambda x: torch.arange(SIZE).float().expand(SIZE, -1) + torch.ones_like(x),
        "copy_to_buffer": lambda x: buffers.values[0].copy_(x.clone()),
        "mask": lambda x: x.masked_fill(buffers.mask, 1.0).tanh_(),
        "operator": negate,
    }


def binary(buffers: Buffers) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    return {
        "add": lambda x, y: x + y,
        "where": lambda x, y: torch.where(buffers.mask, x, y),
        "cat": lambda x, y: torch.cat([x[:2], y[2:]]),
        "out": lambda x, y: torch.mul(x, y, out=torch.empty(SIZE, SIZE)),
    }


def writing(buffers: Buffers) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Steps that write to their first tensor, and return it or a view of it."""
    return {
        "add_": lambda x, y: x.add_(y, alpha=0.25),
        "add_row": lambda x, y: x[1].add_(y[0]).expand(SIZE, -1),
        "set_columns": lambda x, y: (x.__setitem__((slice(None), slice(1, 3)), y[:, :2]), x)[1],
        "index_copy_": lambda x, y: x.index_copy_(0, buffers.rows, y),
    }


Step = tuple[str, int, int]
KINDS = (unary, binary, writing)
NAMES = sorted(name for kind in KINDS for name in kind(Buffers.draw(0)))
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 40), st.integers(0, 40)), max_size=14)


def run_steps(program: list[Step], buffers: Buffers) -> list[Tensor]:
    """Apply each step to two of the tensors there are, and return the last ones made."""
    of_one, of_two, of_target = (kind(buffers) for kind in KINDS)
    tensors = list(buffers.values)
    for name, first, second in program:
        x, y = tensors[first % len(tensors)], tensors[second % len(tensors)]
        if name in of_one:
            tensors.append(of_one[name](x))
        elif name in of_two:
            tensors.append(of_two[name](x, y))
        else:
            can_write = x.is_contiguous() and not share_memory(x, y)
            tensors.append(of_target[name](x if can_write else x.clone(), y))
    return tensors[-3:]


@settings(max_examples=150, deadline=None)
@given(program=steps, seeds=st.lists(st.integers(0, 2**31), min_size=2, max_size=4))
def test_replays_equal_the_program_to_the_bit(program: list[Step], seeds: list[int]) -> None:
    buffers = Buffers.draw(seeds[0])
    recording = record(lambda: run_steps(program, buffers))
    for seed in seeds[1:]:
        buffers.assign(Buffers.draw(seed))
        expected_buffers = Buffers.draw(seed)
        with torch.inference_mode():
            expected = [tensor.clone() for tensor in run_steps(program, expected_buffers)]
            found = recording.replay()
        for mine, theirs in zip([*found, *buffers.tensors], [*expected, *expected_buffers.tensors], strict=True):
            assert torch.equal(mine, theirs), recording.source
