"""The runner on a device that computes nothing: the host's side as ever, the device's side the books of the step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from specbench.device.base import Device
from specbench.device.times import StepWork
from specbench.device.tracing import Tracer
from specbench.engine.attention.base import AttentionOperator
from specbench.engine.config import EngineConfig
from specbench.engine.drafters.base import Drafter
from specbench.engine.forward_batch import ContextRows, ForwardBatch
from specbench.engine.model_runner import ModelRunner
from specbench.engine.models.base import CausalLM
from specbench.engine.optimizations.base import Switch
from specbench.engine.optimizations.choice_points import StepPrograms
from specbench.engine.sampling.acceptance import Acceptance, PlannedAcceptance
from specbench.engine.simulated_step import SimulatedStep
from specbench.errors import InputError


class SimulatedRunner(ModelRunner):
    """See :class:`specbench.engine.model_runner.ModelRunner`.

    Forward, sampling and drafting are not run: they are in the device's declared times.

    :raises InputError: an acceptance that looks at tokens.
    """

    def __init__(
        self,
        config: EngineConfig,
        device: Device,
        model: CausalLM,
        attention: AttentionOperator,
        drafter: Drafter,
        acceptance: Acceptance,
        tracer: Tracer,
        graphs: Switch[StepPrograms],
    ) -> None:
        super().__init__(config, device, model, attention, drafter, acceptance, tracer, graphs)
        if not isinstance(acceptance, PlannedAcceptance):
            raise InputError(
                f"device {config.device} computes no tokens to judge, so that they must be accepted by number",
                where="acceptance.mode",
                hint="acceptance: {mode: forced, length: 1.0}",
            )
        self._step = SimulatedStep(
            self.state,
            acceptance,
            config.drafter.max_draft_len,
            model.config.vocab_size,
            model.config.eos_token_ids,
        )

    def _fill_cache(self, rows: ContextRows, blocks: Tensor) -> None:  # noqa: ARG002
        """Nothing is in the cache; the slot has another request."""
        self._step.forget(rows.slot)

    def program(self, batch: ForwardBatch, output: Tensor) -> Callable[[], StepWork]:
        """The books, and what the device is to take its time for."""
        inputs = self.inputs
        return lambda: self._step.keep_books(
            batch, inputs.token_ids[: batch.num_context_tokens], inputs.slots[: batch.num_generation], output
        )
