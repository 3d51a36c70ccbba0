"""What a captured program may not do: look at values. And what its calls are named, where they are only named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.device.recording import CallNames, record
from specbench.errors import EngineError


def numbers(*shape: int, start: int = 0) -> Tensor:
    """Small whole float32 numbers, all different."""
    count = int(torch.Size(shape).numel())
    return torch.arange(start, start + count, dtype=torch.float32).view(shape)


class TestHostReads:
    """Values that the host would look at, and keep as they were."""

    @pytest.mark.parametrize(
        ("call", "read"),
        [
            ("item", lambda x: x[0].item()),
            ("tolist", lambda x: x.tolist()),
            ("numpy", lambda x: x.numpy()),
            ("__bool__", lambda x: bool(x[0] > 0)),
            ("__bool__", lambda x: 1 if x[0] else 2),
            ("__int__", lambda x: int(x[0])),
            ("__float__", lambda x: float(x[0])),
            ("__index__", lambda x: range(x.long()[0])),
            ("equal", lambda x: torch.equal(x, x)),
            ("allclose", lambda x: x.allclose(x)),
            ("__contains__", lambda x: 1.0 in x),
            ("nonzero", lambda x: x.nonzero()),
            ("__getitem__", lambda x: x[x > 1]),
            ("__setitem__", lambda x: x.__setitem__(x > 1, torch.zeros(1, 2)[0])),
            ("repeat_interleave", lambda x: x.repeat_interleave(x.long())),
            ("repeat_interleave", lambda x: torch.repeat_interleave(x.long())),
            ("tensor", lambda x: torch.tensor([x[0], x[1]])),
            ("tensor", lambda x: torch.tensor(data=(x[0],))),
            ("data_ptr", lambda x: x.data_ptr()),
        ],
    )
    @pytest.mark.parametrize("mode", ["recording", "names"])
    def test_they_are_refused_where_they_are_made(self, call: str, read: Callable[[Tensor], Any], mode: str) -> None:
        x = torch.tensor([0.0, 2.0, 3.0])

        def run() -> None:
            if mode == "recording":
                record(lambda: read(x))
            else:
                with CallNames():
                    read(x)

        with pytest.raises(EngineError, match=f"^[^\n]*{call} needs the value") as caught:
            run()
        assert caught.value.where is not None
        assert caught.value.where.startswith(__file__)
        assert "runtime operator" in str(caught.value.hint)

    def test_asking_for_shapes_and_kinds_is_no_read(self) -> None:
        x = numbers(2, 3)

        def program() -> Tensor:
            assert x.shape == (2, 3)
            assert (x.size(0), x.dim(), x.numel(), len(x), x.stride()) == (2, 2, 6, 2, (3, 1))
            assert x.dtype == torch.float32
            assert x.device.type == "cpu"
            assert x.is_contiguous()
            assert x.is_floating_point()
            assert x.grad is None
            return x.bool().int()

        assert record(program).operators == ("bool", "int")

    def test_repeating_by_numbers_or_to_a_known_size_is_none(self) -> None:
        x, counts = numbers(2), torch.tensor([1, 2])

        def program() -> Tensor:
            return x.repeat_interleave(3) + x.repeat_interleave(counts, output_size=3).repeat(2)

        recording = record(program)
        counts.copy_(torch.tensor([2, 1]))
        assert recording.replay().tolist() == [0, 0, 1, 1, 1, 2]

    def test_a_number_under_a_mask_is_none(self) -> None:
        x = numbers(4)

        def program() -> None:
            x[x > 1] = 0

        recording = record(program)
        x.copy_(numbers(4, start=-2))
        recording.replay()
        assert x.tolist() == [-2, -1, 0, 1]

    def test_recordings_do_not_nest(self) -> None:
        with pytest.raises(EngineError, match="inside another recording"):
            record(lambda: record(lambda: None))

    def test_attributes_of_tensors_are_not_set(self) -> None:
        x = numbers(2)

        def program() -> None:
            x.data = numbers(2)

        with pytest.raises(EngineError, match="data of a tensor is set"):
            record(program)


class TestNames:
    def test_names_are_short_and_the_same_as_those_of_a_recording(self) -> None:
        x, ids, out = numbers(2, 4), torch.tensor([1, 0]), torch.zeros(2, 2)

        def program() -> None:
            hidden = F.embedding(ids, x)
            product = F.linear(hidden, x)
            weights = torch.ops.aten._softmax.default(product, 1, False)
            out.copy_(F.silu(weights).mul_(2)[:, :2])

        recording = record(program)
        with torch.inference_mode(), CallNames() as calls:
            program()
        expected = ["embedding", "linear", "_softmax", "silu", "mul_", "getitem", "copy_"]
        assert list(recording.operators) == calls.operators == expected

    def test_a_step_of_names_leaves_out_shapes(self) -> None:
        x = numbers(2)
        with CallNames() as calls:
            assert x.shape[0] == 2
            x.add_(1)
        assert calls.operators == ["add_"]
