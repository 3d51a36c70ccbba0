"""What an engine is built from. No torch here: scenarios are checked without it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.device.times import SIM, DeviceTimes
from specbench.errors import InputError

DTYPES = ("bfloat16", "float32", "float16")
MAX_DRAFT_LEN = 16
"""Cap on K: rows a generation request takes in a step are K + 1, and every slot reserves them."""


def positions_for(length: int, max_draft_len: int) -> int:
    """Positions, and so KV cells, that a sequence of at most ``length`` tokens may touch.

    A request is scheduled while the host has seen fewer than ``length`` tokens of it. The step in flight may commit
    K + 1 more, and the next one has K + 1 rows after them.
    """
    return length + 2 * (max_draft_len + 1)


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

    :param draft_len: K, draft tokens a request and step.
    :param runtime_draft_len: (largest batch size, K) pairs in rising order; a batch takes the first that holds it,
        a batch above all of them takes K = 0. Empty: always ``draft_len``.
    """

    name: str = "none"
    draft_len: int = 0
    runtime_draft_len: tuple[tuple[int, int], ...] = ()
    max_ngram: int = 3
    min_ngram: int = 1

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

    @property
    def speculates(self) -> bool:
        """Whether device lengths may run ahead of what the host counts: any drafter, whatever its K in a step."""
        return self.name != "none" or self.max_draft_len > 0


@dataclass(frozen=True)
class AcceptanceSpec:
    """How draft tokens are accepted.

    :param mode: ``strict``, ``forced`` or ``replay`` (each request brings the lengths it replays).
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
        rows = self.drafter.max_draft_len + 1
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
        return -(-positions_for(1, self.drafter.max_draft_len) // self.tokens_per_block)

    @property
    def padding_slot(self) -> int:
        """The slot of padding requests, behind those of requests."""
        return self.max_batch_size

    @property
    def max_positions(self) -> int:
        """Positions a sequence may touch: under overlap a step may run past the end that the host has not seen yet."""
        return positions_for(self.max_seq_len, self.drafter.max_draft_len)
