"""What a drafter declares: whether it looks up or computes, and which weights it brings. No torch here.

Scenarios are checked, memory is planned and results are told apart by this alone, so that a drafter of another package
counts as those of this one do. Its code is imported when it is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specbench import registry
from specbench.errors import InputError

if TYPE_CHECKING:
    from specbench.engine.config import DrafterSpec, ModelSpec
    from specbench.engine.models.config import ModelConfig

_HERE = "specbench.engine.drafters"


class Role(str, Enum):
    """What a drafter does, and so where in a pair it may stand."""

    NOTHING = "nothing"
    """Never proposes."""
    LOOKUP = "lookup"
    """Looks up what is known, and may find nothing: the first of a pair."""
    MODEL = "model"
    """Computes and always proposes: the second of a pair. It may have weights, and a KV cache of its own."""


@dataclass(frozen=True)
class WeightsQuery:
    """Whose weights are asked for, and what they are to draft for.

    :param max_seq_len: tokens of the longest sequence; None: not known yet.
    :param with_files: the weights themselves have to be here, and :attr:`DraftWeights.files` are to be told; else
        configurations and headers are enough, and a hub is asked for no more.
    """

    spec: DrafterSpec
    target: ModelSpec
    target_config: ModelConfig
    max_seq_len: int | None = None
    with_files: bool = False


@dataclass(frozen=True)
class DraftWeights:
    """The weights of a drafter, and what it keeps beside them.

    :param source: what is loaded, for people.
    :param num_parameters: held in memory in the engine's dtype; where files do not tell yet, the most it can be.
    :param draft_vocab_size: columns of its logits, which rejection keeps the probabilities of; 0: its proposals are
        certain to it.
    :param kv_values_per_token: numbers that its own layers add to the KV cache for one token, keys and values together.
    :param configuration: what its computation depends on beside the files, as JSON can hold it.
    :param files: what it is loaded from; empty for drawn weights, and where they were not asked for.
    """

    source: str
    num_parameters: int
    draft_vocab_size: int = 0
    kv_values_per_token: int = 0
    configuration: Mapping[str, Any] | None = None
    files: tuple[Path, ...] = ()

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes that the draft layers add to the KV cache for one token."""
        return self.kv_values_per_token * bytes_per_element


@dataclass(frozen=True)
class DrafterDeclaration:
    """The declaration of a drafter.

    :param builder: ``"module:attr"`` of its class, a :class:`specbench.engine.drafters.base.Drafter`.
    :param weights: ``"module:attr"`` of a function (:class:`WeightsQuery`) -> :class:`DraftWeights`, in a module that
        imports no torch; it raises InputError for what cannot draft for the target. None: it has no weights, and no
        layers in a KV cache.
    :param tree_builder: ``"module:attr"`` of the class that drafts trees; None: it drafts none.
    :raises ValueError: weights of a drafter that computes nothing (a mistake in the declaration).
    """

    builder: str
    role: Role
    weights: str | None = None
    tree_builder: str | None = None

    def __post_init__(self) -> None:
        if self.role is not Role.MODEL and (self.weights or self.tree_builder):
            raise ValueError(f"{self.builder} is declared as {self.role.value}, and has weights or drafts trees")

    def load_class(self, *, tree: bool = False) -> Any:
        """Import the drafter's class; ``tree``: the one that drafts trees. Imports torch."""
        path = self.tree_builder if tree else self.builder
        assert path is not None, "checked where the specification is made"
        return _import(path)

    def find_weights(self, query: WeightsQuery) -> DraftWeights | None:
        """Ask for the weights; None for a drafter without.

        :raises InputError: no such weights, or they do not fit the target or the draft length.
        """
        return None if self.weights is None else cast(DraftWeights, _import(self.weights)(query))


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


NONE = DrafterDeclaration(f"{_HERE}.none:NoDrafter", Role.NOTHING)
NGRAM = DrafterDeclaration(f"{_HERE}.ngram:NgramDrafter", Role.LOOKUP)
EAGLE3 = DrafterDeclaration(
    f"{_HERE}.eagle3:Eagle3Drafter",
    Role.MODEL,
    weights=f"{_HERE}.draft_weights:find_eagle3_weights",
    tree_builder=f"{_HERE}.eagle3_tree:Eagle3TreeDrafter",
)
MTP = DrafterDeclaration(f"{_HERE}.mtp:MtpDrafter", Role.MODEL, weights=f"{_HERE}.draft_weights:find_mtp_weights")
DRAFT_MODEL = DrafterDeclaration(
    f"{_HERE}.draft_model:DraftModelDrafter", Role.MODEL, weights=f"{_HERE}.draft_weights:find_draft_model_weights"
)


def load_declaration(name: str) -> DrafterDeclaration:
    """Return the declaration registered under ``name``, which is one drafter and no pair.

    :raises UnknownNameError: no drafter has the name.
    :raises InputError: what is registered is no declaration.
    """
    found = registry.DRAFTERS.load(name, where="drafter.name")
    if not isinstance(found, DrafterDeclaration):
        raise InputError(
            f"the drafter {name} is registered as {registry.DRAFTERS[name].target}, which is no DrafterDeclaration",
            where="drafter.name",
            hint="its package has to register one, as CONTRIBUTING.md says: it tells what the drafter is and keeps",
        )
    return found


def role_of(name: str) -> Role | None:
    """The role of one drafter; None where no registry has the name."""
    return load_declaration(name).role if name in registry.DRAFTERS else None


def names_with(role: Role) -> list[str]:
    """Every registered drafter of ``role``."""
    return [name for name in registry.DRAFTERS if role_of(name) is role]
