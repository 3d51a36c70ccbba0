"""Capturing steps: which ones, in what order, and what is kept of each.

A capture has two passes: in the greedy one the recorded steps take the argmax, in the advanced one they draw tokens.
Each pass has a workspace round, in which every step runs eagerly, so that whatever allocates or tunes itself at first
use has done so; and a real round, which records. Sizes descend: memory that a large step needed serves the small ones.

Warm-up requests are padding requests: they share the padding slot, so that a capture may happen between two steps of
requests that are being served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.device.base import CapturedProgram, Device
from specbench.engine.capture_params import RealParams
from specbench.engine.config import EngineConfig
from specbench.engine.forward_batch import ForwardBatch, InputSource
from specbench.engine.input_preparation import InputPreparation
from specbench.engine.model_runner import ModelRunner
from specbench.engine.request import Request
from specbench.engine.sampling.metadata import RowFacts
from specbench.engine.sampling.params import SamplingParams
from specbench.engine.sampling.sampler import DRAW
from specbench.engine.sampling.step_sampling import StepSampling
from specbench.engine.scheduler import Schedule


class DeviceProgram(NamedTuple):
    """Every choice inside a step's program that is not a size: where inputs come from, how much is drafted."""

    source: InputSource
    next_draft_len: int


class CaptureKey(NamedTuple):
    """What a captured step was captured for. ``is_greedy``: no request asks for sampling."""

    program: DeviceProgram
    batch_size: int
    draft_len: int
    is_greedy: bool


class MetadataKey(NamedTuple):
    """Steps that share a copy of the sampling metadata: all programs of one batch size, K, next K, greedy or not."""

    batch_size: int
    draft_len: int
    next_draft_len: int
    is_greedy: bool


@dataclass(frozen=True)
class CapturedStep:
    """One recorded step.

    :param output: where it writes its output, on the device.
    :param draws: it draws tokens; else it takes the argmax, whatever the requests ask for.
    """

    program: CapturedProgram
    output: Tensor
    draws: bool

    def replay_into(self, output: Tensor) -> Callable[[], Any]:
        """The program that runs the step and copies the rows that are no padding to ``output``, staging memory."""

        def program() -> Any:
            result = self.program.replay()
            output.copy_(self.output[: output.shape[0]], non_blocking=True)
            return result

        return program


@dataclass
class CaptureSet:
    """All steps that were captured in one way, and the copies of the sampling metadata that they keep."""

    steps: dict[CaptureKey, CapturedStep] = field(default_factory=dict)
    copies: dict[MetadataKey, StepSampling] = field(default_factory=dict)

    def find_size(self, num_requests: int, draft_len: int, next_draft_len: int) -> int | None:
        """The smallest captured batch that holds ``num_requests``; None: there is none."""
        # Asked in every step, and mostly of a size that was captured.
        if MetadataKey(num_requests, draft_len, next_draft_len, True) in self.copies:
            return num_requests
        sizes = [
            key.batch_size
            for key in self.copies
            if key.batch_size > num_requests and (key.draft_len, key.next_draft_len) == (draft_len, next_draft_len)
        ]
        return min(sizes, default=None)

    def describe(self) -> dict[str, Any]:
        """Numbers of steps by kind, sizes, operators of the largest step of each kind (None: not known).

        ``advanced_without_draws`` and ``copies_with_override`` are 0 in an engine without defects.
        """
        advanced = [step for key, step in self.steps.items() if not key.is_greedy]
        return {
            "greedy_steps": len(self.steps) - len(advanced),
            "advanced_steps": len(advanced),
            "advanced_without_draws": sum(not step.draws for step in advanced),
            "copies_with_override": sum(copied.override is not None for copied in self.copies.values()),
            "batch_sizes": sorted({key.batch_size for key in self.steps}),
            "operators": {
                "greedy": self._count_operators(is_greedy=True),
                "advanced": self._count_operators(is_greedy=False),
            },
        }

    def _count_operators(self, *, is_greedy: bool) -> int | None:
        keys = [key for key in self.steps if key.is_greedy is is_greedy]
        if not keys:
            return None
        largest = max(keys, key=lambda key: (key.batch_size, key.draft_len))
        return len(self.steps[largest].program.operators) or None


class StepCapture:
    """Captures every step of an engine that it may be asked for.

    :param live: the metadata that serves; each captured step gets a copy.
    :ivar copy_in_use: of the step that is being warmed up or recorded.
    """

    copy_in_use: StepSampling

    def __init__(
        self,
        config: EngineConfig,
        device: Device,
        runner: ModelRunner,
        preparation: InputPreparation,
        live: StepSampling,
    ) -> None:
        self._config = config
        self._device = device
        self._runner = runner
        self._preparation = preparation
        self._live = live

    def capture(self, params: RealParams) -> CaptureSet:
        """Capture all steps. Nothing may be in flight; requests that are being served are not disturbed.

        :param params: how warm-up requests come to be sampled.
        """
        captured = CaptureSet()
        try:
            for is_greedy in (True, False):
                params.begin_pass(self._live, is_greedy)
                for batch, _ in self._warm_up_batches(captured, params, is_greedy):
                    self._run_eagerly(batch)
                params.end_workspace_round(captured.copies.values())
                for batch, key in self._warm_up_batches(captured, params, is_greedy):
                    captured.steps[key] = self._record(batch)
            params.end_capture(self._live, captured.copies.values())
        except BaseException:
            # A capture that fails leaves an engine that can serve eagerly.
            self._live.override = None
            raise
        self._device.synchronize()
        return captured

    def _warm_up_batches(
        self, captured: CaptureSet, params: RealParams, is_greedy: bool
    ) -> Iterator[tuple[ForwardBatch, CaptureKey]]:
        """The batches of one round, prepared and uploaded one at a time."""
        request = padding_request(self._config, params.warm_up_params(is_greedy))
        for size, draft_len in capture_shapes(self._config):
            metadata_key = MetadataKey(size, draft_len, draft_len, is_greedy)
            if metadata_key not in captured.copies:
                captured.copies[metadata_key] = self._live.copy()
                params.keep_copy(captured.copies[metadata_key])
            self.copy_in_use = captured.copies[metadata_key]
            schedule = Schedule(
                generation=[request] * size,
                draft_len=draft_len,
                next_draft_len=draft_len,
                num_padding=size,
                is_warm_up=True,
                num_nodes=self._config.drafter.num_nodes_for(draft_len),
            )
            prepared = self._preparation.prepare(0, schedule)
            for batch in _by_source(prepared):
                self._runner.inputs.upload(batch)
                key = CaptureKey(DeviceProgram(batch.source, draft_len), size, draft_len, is_greedy)
                yield _without_lengths(batch), key

    def _make_output(self, batch: ForwardBatch) -> Tensor:
        shape = (batch.num_requests, batch.columns.count)
        return torch.zeros(shape, dtype=torch.int64, device=self._device.torch_device)

    def _run_eagerly(self, batch: ForwardBatch) -> None:
        self._device.launch(self._runner.program(batch, self._make_output(batch)), "capture").wait()

    def _record(self, batch: ForwardBatch) -> CapturedStep:
        output = self._make_output(batch)
        program = self._device.capture(self._runner.program(batch, output), "capture")
        draws = DRAW in program.operators if program.operators else not batch.sampling.all_greedy
        return CapturedStep(program, output, draws)


def _by_source(batch: ForwardBatch) -> list[ForwardBatch]:
    """``batch``, and where the host counts lengths the same as a step that goes on from the last one."""
    if batch.source is not InputSource.HOST:
        return [batch]
    return [batch, replace(batch, source=InputSource.LAST_STEP, places=None, block_offsets=None)]


def _without_lengths(batch: ForwardBatch) -> ForwardBatch:
    """``batch`` as the description of every batch of its key: lengths and parameters are looked up when it runs.

    What the host staged for this one alone is on the device by now, and would be kept as long as the recording.
    """
    sampling = batch.sampling
    if not sampling.all_greedy:
        sampling = replace(sampling, facts=RowFacts.of_any(sampling.facts.num_rows))
    return replace(batch, max_num_tokens=None, sampling=sampling, block_offsets=None, places=None)


def padding_request(config: EngineConfig, params: SamplingParams | None = None) -> Request:
    """A request of one token on the padding slot, which looks the same to every step."""
    return Request(
        request_id="padding",
        prompt_token_ids=(0,),
        params=params or SamplingParams(),
        end_token_ids=frozenset(),
        max_length=config.max_seq_len,
        admitted_ns=0,
        slot=config.padding_slot,
        in_context=False,
        num_in_flight=1,
    )


def capture_shapes(config: EngineConfig) -> list[tuple[int, int]]:
    """(batch size, K) of the steps to capture, sizes falling: powers of two, and the largest batch.

    Every K that a batch may have which is padded to the size.
    """
    sizes = [1]
    while sizes[-1] < config.max_batch_size:
        sizes.append(min(2 * sizes[-1], config.max_batch_size))
    shapes = []
    for smaller, size in zip([0, *sizes], sizes, strict=False):
        draft_lens = {config.drafter.draft_len_for(number) for number in range(smaller + 1, size + 1)}
        shapes += [(size, draft_len) for draft_len in sorted(draft_lens)]
    return shapes[::-1]
