"""The shape of a draft head: an EAGLE-3 layer or multi-token prediction (MTP) modules. No torch here.

Formats: :mod:`specbench.engine.drafters.head_formats`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from specbench.engine.drafters.head_shapes import eagle3_shapes, mtp_shapes
from specbench.engine.models.config import ModelConfig
from specbench.errors import CheckpointError, InputError

HeadKind = Literal["eagle3", "mtp"]
DEFAULT_NUM_HIDDEN_STATES = 3
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
"""Key of a head's config.json that lists :attr:`HeadConfig.hidden_layers`, in either of two ways of counting."""
_LEAST_LAYERS = 3
"""Layers of a target that has every hidden state of the default."""


@dataclass(frozen=True)
class HeadConfig:
    """Hyperparameters of a draft head.

    :param decoder: of the head's decoder layers, ``num_layers`` of them: 1 for eagle3, one a module for mtp.
    :param target_hidden_size: width of the target's hidden states, which may be another than the head's own.
    :param vocab_size: tokens of the target.
    :param draft_vocab_size: rows of the head's logits; ``vocab_size`` where they are the target's ids.
    :param hidden_layers: eagle3: which hidden states of the target are fused, in the order of ``fc``'s columns. Index i
        is the input of decoder layer i, and so the output of layer i - 1, before any norm; None: the default, see
        :meth:`hidden_layers_of`. mtp reads the target's last hidden state and has none.
    :param norm_before_fc: eagle3: each hidden state is divided by its root mean square, without weights, before they
        are concatenated.
    :param norm_before_residual: eagle3: the residual stream starts at the normalised hidden state.
    :param num_modules: mtp: modules, each of which predicts one token further.
    :param has_embedding: the files hold an embedding of its own; else it is the target's.
    :param has_lm_head: the files hold the product that gives logits; else it is the target's (mtp alone).
    :param first_layer: mtp: number of the first module in the tensors' names, which is the target's number of layers.
    :param in_target: mtp: the modules are in the target's own checkpoint, among the target's tensors.
    """

    kind: HeadKind
    decoder: ModelConfig
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    hidden_layers: tuple[int, ...] | None = None
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    num_modules: int = 1
    has_embedding: bool = False
    has_lm_head: bool = True
    first_layer: int | None = None
    in_target: bool = False

    @property
    def num_kv_layers(self) -> int:
        """Layers of its own in the KV cache."""
        return self.num_modules

    @property
    def num_hidden_states(self) -> int:
        """eagle3: hidden states of the target that are fused."""
        return DEFAULT_NUM_HIDDEN_STATES if self.hidden_layers is None else len(self.hidden_layers)

    @property
    def num_parameters(self) -> int:
        """Parameters that the files hold; see :func:`read_head_config` for a head whose files are not here."""
        return sum(prod(shape) for shape in self.expected_tensors().values())

    def hidden_layers_of(self, num_layers: int) -> tuple[int, ...]:
        """Indices of the hidden states that a target of ``num_layers`` layers keeps for the head; none for mtp.

        The default, early, middle and late, is that of the EAGLE-3 authors' code.
        """
        if self.kind != "eagle3":
            return ()
        return (2, num_layers // 2, num_layers - 3) if self.hidden_layers is None else self.hidden_layers

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every weight; the maps ``d2t`` and ``t2d`` are not among them."""
        return eagle3_shapes(self) if self.kind == "eagle3" else mtp_shapes(self)

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes the head's own layers add to the KV cache for one token."""
        return self.decoder.kv_bytes_per_token(bytes_per_element)

    def num_modules_for(self, max_draft_len: int) -> int:
        """mtp: modules that are used where no step drafts more than ``max_draft_len`` tokens, at least 1.

        :raises InputError: several modules, and fewer than draft tokens: each was trained for one place of the draft.
        """
        if 1 < self.num_modules < max_draft_len:
            raise InputError(
                f"{max_draft_len} draft tokens are more than the head's {self.num_modules} modules draft, one "
                "each; only a module that is alone is used again",
                where="drafter.draft_len",
                hint=f"set drafter.draft_len to {self.num_modules} or less",
            )
        return max(min(self.num_modules, max_draft_len), 1)

    def check_target(self, target: ModelConfig, where: Path | str, listed: tuple[int, ...] | None = None) -> None:
        """Refuse a target that the head was not made for.

        :param where: the head's directory, for the message.
        :param listed: ``hidden_layers`` as config.json has them, for the message.
        :raises CheckpointError: another hidden size, vocabulary or number of layers.
        """
        pairs = (
            ("hidden size", self.target_hidden_size, target.hidden_size),
            ("vocabulary size", self.vocab_size, target.vocab_size),
            ("number of layers", self.first_layer or target.num_layers, target.num_layers),
        )
        for name, own, found in pairs:
            if own != found:
                raise CheckpointError(
                    f"the head is made for a target with a {name} of {own}, and this target has {found}",
                    where=str(where),
                    hint="choose a head that was trained for this model, or the model that it was trained for",
                )
        self._check_layers(target.num_layers, where, listed)

    def _check_layers(self, num_layers: int, where: Path | str, listed: tuple[int, ...] | None) -> None:
        layers = self.hidden_layers_of(num_layers)
        if all(0 <= index < num_layers for index in layers):
            return
        hint = f"choose a head that was trained for this model, or correct {LAYER_IDS} in its config.json"
        if self.hidden_layers is None:
            what = (
                f"config.json lists no hidden states, and the default, 2, n // 2 and n - 3 of n layers, needs a target "
                f"of {_LEAST_LAYERS} layers or more; this target has {num_layers}"
            )
            hint = f"list them in its config.json: {LAYER_IDS}"
        else:
            what = f"the head reads hidden states {_join(layers)}; this target has 0 to {num_layers - 1}"
            if listed not in (None, layers):
                what += f" ({LAYER_IDS} is {list(listed or ())}: it begins with 1, and so lists outputs of layers, and "
                what += "the output of layer i is hidden state i + 1)"
        raise CheckpointError(what, where=str(where), hint=hint)


def _join(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
