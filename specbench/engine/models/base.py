"""What the engine and the loader ask of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from specbench.engine.attention.base import AttentionOperator
from specbench.engine.models.config import ModelConfig
from specbench.errors import EngineError


class HiddenTaps:
    """Hidden states of a step on their way through the layers, for a drafter that reads them.

    :param layers: of which layers the input is kept: the residual stream [T, hidden_size] that enters them.
    :ivar states: by layer, of the last forward pass.
    """

    def __init__(self, layers: tuple[int, ...] = ()) -> None:
        self.layers = layers
        self.states: dict[int, Tensor] = {}

    def see(self, layer: int, hidden: Tensor) -> None:
        """Called by a model with what enters each of its layers."""
        if layer in self.layers:
            self.states[layer] = hidden


NO_TAPS = HiddenTaps()


class CausalLM(ABC):
    """A decoder-only model for inference: weights in the layout its device multiplies fastest, no autograd.

    Filled tensor by tensor, so that a second copy of the weights never exists: :meth:`load_tensor` for each of
    :meth:`expected_tensors`, in any order, then :meth:`finish_loading`.
    """

    num_position_rows = 1
    """Rows of positions that the model rotates by: 1, and :meth:`forward` is given [T], or more, and it is given
    [rows, 1, T]; text has the same position in all of them, an image one each for time, height and width."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device

    @abstractmethod
    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name in the Hugging Face format -> shape, of every tensor the model needs. A tied head is not among them."""

    @abstractmethod
    def load_tensor(self, name: str, tensor: Tensor) -> None:
        """Take over one tensor, of any floating point type, on any device; its memory may be kept.

        :raises CheckpointError: an unknown name, a second tensor of that name or another shape than expected.
        """

    @abstractmethod
    def finish_loading(self) -> None:
        """Check that the weights are complete.

        :raises CheckpointError: tensors are missing.
        """

    @abstractmethod
    def forward(
        self, token_ids: Tensor, positions: Tensor, attention: AttentionOperator, taps: HiddenTaps = NO_TAPS
    ) -> Tensor:
        """Run the layers on a step's rows.

        :param token_ids: [T] int64, ``positions`` [T] int64: place of each token in its sequence; see
            :attr:`num_position_rows`.
        :param attention: prepared for this step.
        :param taps: sees what enters each layer.
        :returns: [T, hidden_size] after the final norm, in the model's dtype.
        """

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [N, vocab_size] of ``hidden`` [N, hidden_size]."""

    def embed(self, token_ids: Tensor) -> Tensor:  # noqa: ARG002 - a family that can be drafted for overrides it
        """Return the embeddings [T, hidden_size] of ``token_ids`` [T], as they enter the first layer."""
        raise EngineError(f"{type(self).__name__} lends its embedding to no drafter", where="drafter.name")

    def head_rows(self, token_ids: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return the weight [N, hidden_size] that gives the logits of ``token_ids`` [N], None: of all; a copy."""
        raise EngineError(f"{type(self).__name__} lends its head to no drafter", where="drafter.name")

    def in_float32(self) -> CausalLM | None:
        """Return a model of the same weights, bit for bit, that computes in float32: a copy of them in memory.

        A model that does so already returns itself; None from a family that cannot be copied.
        """
        return None
