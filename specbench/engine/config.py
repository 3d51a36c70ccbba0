"""What an engine is built from. No torch here: scenarios are checked without it."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NoReturn

from specbench.device.times import SIM, DeviceTimes
from specbench.engine.drafters.declaration import Role, names_with, role_of
from specbench.engine.tree_spec import TreeSpec, check_tree_drafter
from specbench.errors import InputError, UnknownNameError
from specbench.registry import DRAFTERS

DTYPES = ("bfloat16", "float32", "float16")
MAX_DRAFT_LEN = 16
"""Cap on K: rows a generation request takes in a step are K + 1, and every slot reserves them."""


RANDOM_PREFIX = "random:"
"""Before a model's name: with random weights of its shape."""
PAIR = "+"
_PAIR_ROLES = (Role.LOOKUP, Role.MODEL)
REJECTION = "rejection"
"""Mode of acceptance whose tokens are draws of the target's distribution, and depend on the drafts."""


def drafter_parts(name: str) -> tuple[str, ...]:
    """``ngram+eagle3`` -> its drafters in order; one that stands alone is the only part. Nothing is checked."""
    return tuple(name.split(PAIR))


def require_drafter(name: str, *, where: str = "drafter.name") -> tuple[str, ...]:
    """The parts of a drafter's name, each in the registry.

    :raises UnknownNameError: a part that no registry has; names the nearest.
    :raises InputError: a pair that is not a lookup and then a drafter with a model.
    """
    parts = drafter_parts(name)
    if not all(part.strip() for part in parts):
        _refuse_half(name, [part for part in parts if part.strip()], where)
    for index, part in enumerate(parts):
        if part not in DRAFTERS:
            near = get_close_matches(part, list(DRAFTERS), n=1)
            meant = PAIR.join([*parts[:index], *near, *(other.strip() for other in parts[index + 1 :])])
            raise UnknownNameError(
                f"unknown drafter {part!r}; allowed: {', '.join(sorted(DRAFTERS))}",
                where=where,
                hint=f"did you mean {meant!r}?" if near else None,
            )
    if len(parts) > 1 and tuple(map(role_of, parts)) != _PAIR_ROLES:
        lookups, models = map(names_with, _PAIR_ROLES)
        raise InputError(
            f"{name!r} is no pair; allowed: a lookup ({', '.join(lookups)}), then a drafter with a model "
            f"({', '.join(models)})",
            where=where,
            hint=f"{lookups[0]}{PAIR}{models[0]}",
        )
    return parts


def _refuse_half(name: str, named: list[str], where: str) -> NoReturn:
    """Refuse a name with nothing before or behind its plus sign; ``named``: what it does name."""
    lookups, models = map(names_with, _PAIR_ROLES)
    what = f"{name!r} is half a pair: a drafter is missing beside the {PAIR}" if named else f"{name!r} names no drafter"
    alone = named[0] if named else lookups[0]
    pair = f"{alone}{PAIR}{models[0]}" if alone in lookups else f"{lookups[0]}{PAIR}{alone}"
    raise UnknownNameError(what, where=where, hint=f"{pair}, or {alone} alone")


def positions_for(length: int, max_draft_len: int, num_ahead: int = 0) -> int:
    """Positions, and so KV cells, that a sequence of at most ``length`` tokens may touch.

    A request is scheduled while the host has seen fewer than ``length`` tokens of it. The step in flight may commit
    K + 1 more, and the next one has K + 1 rows after them.

    :param num_ahead: :attr:`DrafterSpec.num_ahead`.
    """
    return length + 2 * (max_draft_len + 1) + num_ahead


@dataclass(frozen=True)
class ModelSpec:
    """Which weights to serve.

    :param source: a preset name, a checkpoint directory, a ``.gguf`` file or a hub id.
    :param weights: ``auto`` (read them) or ``random`` (seeded; ``source`` must be a preset or a config directory).
    """

    source: str
    weights: str = "auto"
    seed: int = 0
    revision: str | None = None


@dataclass(frozen=True)
class DrafterSpec:
    """Which drafter proposes, and how many tokens.

    :param name: of a drafter, or a pair such as ``ngram+eagle3``: the lookup, and the second where it finds nothing.
    :param model: the draft head or draft model, see :mod:`specbench.engine.drafters.head_location`; None: what ships
        for the target, or what its checkpoint carries.
    :param draft_len: K, draft tokens a request and step.
    :param runtime_draft_len: (largest batch size, K) pairs in rising order; a batch takes the first that holds it,
        a batch above all of them takes K = 0. Empty: always ``draft_len``.
    :param tree: the drafts branch, K is the depth; None: one draft token follows another.
    :raises InputError: a tree with a drafter that drafts none, or with another K.
    """

    name: str = "none"
    draft_len: int = 0
    runtime_draft_len: tuple[tuple[int, int], ...] = ()
    max_ngram: int = 3
    min_ngram: int = 1
    model: str | None = None
    tree: TreeSpec | None = None

    def __post_init__(self) -> None:
        if self.tree is not None:
            check_tree_drafter(self.tree, self.name, [self.max_draft_len, *(k for _, k in self.runtime_draft_len)])

    @property
    def model_part(self) -> str | None:
        """The drafter that computes, alone or behind a lookup; None where none does."""
        return next((part for part in drafter_parts(self.name) if role_of(part) is Role.MODEL), None)

    def draft_len_for(self, batch_size: int) -> int:
        """K for a step with ``batch_size`` generation requests."""
        if not self.runtime_draft_len:
            return self.draft_len
        for largest, draft_len in self.runtime_draft_len:
            if batch_size <= largest:
                return draft_len
        return 0

    @property
    def max_draft_len(self) -> int:
        """The largest K any step can use."""
        return max([self.draft_len if not self.runtime_draft_len else 0, *(k for _, k in self.runtime_draft_len)])

    def num_nodes_for(self, draft_len: int) -> int:
        """Nodes of the draft tree in a step with K = ``draft_len``; 0: the step has none."""
        return 0 if self.tree is None or not draft_len else self.tree.num_nodes

    @property
    def max_rows(self) -> int:
        """The most rows a generation request takes in a step."""
        return (self.num_nodes_for(self.max_draft_len) or self.max_draft_len) + 1

    @property
    def num_ahead(self) -> int:
        """Positions behind the K + 1 of a step that its rows, or a drafter with a cache of its own, may write to.

        After a step that accepts all of its tokens, such a drafter goes on behind them, one row for each draft token
        but the last, which it does not read.
        """
        if self.tree is not None:
            return self.tree.num_ahead
        return max(self.max_draft_len - 1, 0) if self.model_part is not None else 0

    @property
    def speculates(self) -> bool:
        """Whether device lengths may run ahead of what the host counts: any drafter, whatever its K in a step."""
        return self.name != "none" or self.max_draft_len > 0


@dataclass(frozen=True)
class AcceptanceSpec:
    """How draft tokens are accepted.

    :param mode: ``strict``, ``rejection``, ``forced`` or ``replay`` (each request brings the lengths it replays).
    :param length: forced only; a mean acceptance length, bonus token included (1.0 <= length <= K + 1).
    :param rates: forced only; conditional acceptance rate by draft position, instead of ``length``.
    """

    mode: str = "strict"
    length: float | None = None
    rates: tuple[float, ...] = ()


@dataclass(frozen=True)
class EngineConfig:
    """Everything the engine is built from, resolved: no ``auto`` is left in it.

    :param max_num_tokens: most token rows a step may carry; prompts are chunked to fit.
    :param num_blocks: KV blocks in the pool.
    :param device_times: of ``device`` sim, which declares them; None: the device computes, for as long as it takes.
    """

    model: ModelSpec
    device: str
    max_seq_len: int
    max_batch_size: int
    num_blocks: int
    dtype: str = "bfloat16"
    tokens_per_block: int = 32
    max_num_tokens: int = 512
    attention: str = "cpu-paged"
    num_threads: int | None = None
    drafter: DrafterSpec = field(default_factory=DrafterSpec)
    acceptance: AcceptanceSpec = field(default_factory=AcceptanceSpec)
    optimizations: tuple[tuple[str, str], ...] = ()
    device_times: DeviceTimes | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError(f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}", where="engine.dtype")
        for name in ("max_seq_len", "max_batch_size", "num_blocks", "tokens_per_block", "max_num_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"must be at least 1, found {getattr(self, name)}", where=f"engine.{name}")
        if (self.device == SIM) != (self.device_times is not None):
            raise InputError(f"device {SIM} and declared times go together, one without the other", where="engine.sim")
        if self.drafter.max_draft_len > MAX_DRAFT_LEN:
            raise InputError(
                f"draft_len {self.drafter.max_draft_len} is over the cap of {MAX_DRAFT_LEN}",
                where="drafter.draft_len",
            )
        rows = self.drafter.max_rows
        if self.max_num_tokens < rows:
            raise InputError(
                f"a generation request takes {rows} rows, but a step may carry {self.max_num_tokens}",
                where="engine.max_num_tokens",
                hint=f"set engine.max_num_tokens to {self.max_batch_size * rows} or more",
            )

    @property
    def blocks_per_sequence(self) -> int:
        """KV blocks one sequence of ``max_seq_len`` needs, rows past its end included."""
        return -(-self.max_positions // self.tokens_per_block)

    @property
    def num_padding_blocks(self) -> int:
        """KV blocks beside the pool, for the slot that padding requests share."""
        return -(-positions_for(1, self.drafter.max_draft_len, self.drafter.num_ahead) // self.tokens_per_block)

    @property
    def padding_slot(self) -> int:
        """The slot of padding requests, behind those of requests."""
        return self.max_batch_size

    @property
    def max_positions(self) -> int:
        """Positions a sequence may touch: under overlap a step may run past the end that the host has not seen yet."""
        return positions_for(self.max_seq_len, self.drafter.max_draft_len, self.drafter.num_ahead)
