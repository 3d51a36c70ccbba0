"""How much memory a configuration takes, and whether this machine has it."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.engine.config import REJECTION, EngineConfig
from specbench.engine.drafters.declaration import DraftWeights
from specbench.engine.models.config import ModelConfig
from specbench.errors import CapacityError
from specbench.scenario.units import format_bytes

BYTES_PER_ELEMENT = {"bfloat16": 2, "float16": 2, "float32": 4}
_BOOK_BYTES_PER_TOKEN, _BOOK_BYTES_PER_BLOCK = 8, 160
"""Of a device that computes nothing: token ids, and what the host knows of a block."""
_LOGITS_COPIES = 2
"""Float32 logits of a full batch, and the sampler's working copy of them."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes an engine takes once every KV block has been used.

    :param logits_bytes: of a full batch; grows with the batch, as the KV cache does.
    :param activations_bytes: estimate for the widest step.
    :param state_bytes: recurrent state of every slot, for models that have some.
    :param draft_weights_bytes: of a draft head or draft model; its layers' share of the cache is in ``kv_cache_bytes``.
    :param draft_probs_bytes: under rejection, what the draft tokens were drawn from, by slot and draft position.
    """

    weights_bytes: int
    kv_cache_bytes: int
    logits_bytes: int
    activations_bytes: int
    state_bytes: int = 0
    draft_weights_bytes: int = 0
    draft_probs_bytes: int = 0

    @property
    def workspace_bytes(self) -> int:
        """What a step needs beside weights and cache."""
        return self.logits_bytes + self.activations_bytes + self.draft_probs_bytes

    @property
    def total_bytes(self) -> int:
        """All of it."""
        fixed = self.weights_bytes + self.draft_weights_bytes
        return fixed + self.kv_cache_bytes + self.state_bytes + self.workspace_bytes

    def __str__(self) -> str:
        draft = f"draft weights {format_bytes(self.draft_weights_bytes)}, " if self.draft_weights_bytes else ""
        state = f"recurrent state {format_bytes(self.state_bytes)}, " if self.state_bytes else ""
        return (
            f"{format_bytes(self.total_bytes)} (weights {format_bytes(self.weights_bytes)}, {draft}"
            f"KV cache {format_bytes(self.kv_cache_bytes)}, {state}workspace {format_bytes(self.workspace_bytes)})"
        )


def block_bytes(model: ModelConfig, dtype: str, tokens_per_block: int, draft: DraftWeights | None = None) -> int:
    """Bytes of one KV block over all layers, those of a drafter included."""
    width = BYTES_PER_ELEMENT[dtype]
    per_token = model.kv_bytes_per_token(width) + (0 if draft is None else draft.kv_bytes_per_token(width))
    return tokens_per_block * per_token


def memory_need(engine: EngineConfig, model: ModelConfig, draft: DraftWeights | None = None) -> MemoryNeed:
    """What ``engine`` takes when it serves ``model``. Where nothing is computed: the books, which grow as a cache.

    :param draft: of a drafter with weights; None: the drafter has none.
    """
    if engine.device_times is not None:
        per_block = engine.tokens_per_block * _BOOK_BYTES_PER_TOKEN + _BOOK_BYTES_PER_BLOCK
        return MemoryNeed(0, engine.num_blocks * per_block, 0, 0)
    width = BYTES_PER_ELEMENT[engine.dtype]
    rows = engine.max_batch_size * engine.drafter.max_rows
    logits = rows * model.vocab_size * 4 * _LOGITS_COPIES
    activations = engine.max_num_tokens * (4 * model.hidden_size + 3 * model.intermediate_size) * width
    return MemoryNeed(
        model.num_parameters * width,
        engine.num_blocks * block_bytes(model, engine.dtype, engine.tokens_per_block, draft),
        logits,
        activations,
        # One more slot is padding's.
        model.state_bytes(engine.max_batch_size + 1, engine.drafter.max_draft_len + 1, width),
        0 if draft is None else draft.num_parameters * width,
        _draft_probs_bytes(engine, draft),
    )


def _draft_probs_bytes(engine: EngineConfig, draft: DraftWeights | None) -> int:
    if draft is None or engine.acceptance.mode != REJECTION or engine.drafter.tree is not None:
        return 0
    return (engine.max_batch_size + 1) * engine.drafter.max_draft_len * draft.draft_vocab_size * 4


def require_memory(need: MemoryNeed, engine: EngineConfig, available_bytes: int | None) -> None:
    """Refuse what cannot fit.

    :param available_bytes: None where the machine does not tell; nothing is refused then.
    :raises CapacityError: with the figures, and what to lower to how much.
    """
    if available_bytes is None or need.total_bytes <= available_bytes:
        return
    raise CapacityError(
        f"needs {need}, but {format_bytes(available_bytes)} is available on {engine.device}",
        where="engine",
        hint=_what_to_lower(need, engine, available_bytes),
    )


def _what_to_lower(need: MemoryNeed, engine: EngineConfig, available_bytes: int) -> str:
    batch = engine.max_batch_size
    sequence = need.kv_cache_bytes // engine.num_blocks * engine.blocks_per_sequence
    by_batch = need.logits_bytes + need.state_bytes + need.draft_probs_bytes
    request = sequence + -(-by_batch // batch)
    room = available_bytes - need.weights_bytes - need.draft_weights_bytes - need.activations_bytes
    fitting = room // request
    if fitting >= batch:
        cache = room - by_batch
        if cache < 2**20:
            return f"set engine.num_blocks to {cache // (need.kv_cache_bytes // engine.num_blocks)} or less"
        return f"set engine.kv_cache to {cache // 2**20}MiB or less"
    if fitting >= 1:
        return (
            f"lower workload.concurrency and engine.max_batch_size ({batch}) to {fitting} or less, "
            f"or lower engine.max_seq_len ({engine.max_seq_len})"
        )
    smaller = "a smaller model (`specbench list presets`)"
    if engine.dtype == "float32":
        smaller = f"engine.dtype: bfloat16, or {smaller}"
    return smaller if room < 0 else f"lower engine.max_seq_len ({engine.max_seq_len}), or take {smaller}"
