"""``random_tokens``: prompts of seeded random ids, always labelled synthetic.

Request ``i`` depends on the seed and ``i`` alone, whatever ``num_requests`` is, and a longer prompt begins
with the shorter one. Ids come straight from PCG64's 64-bit output, which numpy promises never to change;
taking it modulo the vocabulary favours no id by more than one part in 10**13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specbench.errors import WorkloadError
from specbench.workloads.base import (
    SYNTHETIC,
    Conversation,
    Label,
    WorkloadSettings,
    draw_length,
    refuse_settings,
    stable_seed,
)

if TYPE_CHECKING:
    from specbench.workloads.tokenizer import Tokenizer

DEFAULT_NUM_REQUESTS = 16


class RandomTokens:
    """Single-turn requests of ``isl`` random ids and ``osl`` output tokens.

    Special tokens are left out, as they would end or restructure a prompt, and so are ids of the model's
    vocabulary for which its tokenizer has no token (padding of the embedding). Without a tokenizer all ids
    are used.
    """

    kind = "random_tokens"

    def __init__(self, settings: WorkloadSettings, *, vocab_size: int, tokenizer: Tokenizer | None) -> None:
        refuse_settings(settings, "path", "categories", "shuffle", "system_prompt")
        if settings.turns not in (None, 1):
            raise WorkloadError(f"random_tokens has one turn, found {settings.turns}", where="workload.turns")
        self.settings = settings
        num_ids = vocab_size if tokenizer is None else min(vocab_size, tokenizer.vocab_size)
        special = frozenset() if tokenizer is None else tokenizer.special_token_ids
        self._ordinary_ids = [token_id for token_id in range(num_ids) if token_id not in special]
        if not self._ordinary_ids:
            raise WorkloadError(f"no ordinary ids among the vocabulary of {vocab_size}", where="model")

    @property
    def label(self) -> Label:
        """Always ``synthetic input``."""
        return SYNTHETIC

    def conversations(self) -> list[Conversation]:
        """Return ``num_requests`` conversations of one turn each (16 unless set)."""
        import numpy as np

        ordinary_ids = np.array(self._ordinary_ids, dtype=np.int64)
        num_requests = self.settings.num_requests or DEFAULT_NUM_REQUESTS
        return [self._request(index, ordinary_ids) for index in range(num_requests)]

    def _request(self, index: int, ordinary_ids: Any) -> Conversation:
        import numpy as np

        seed = self.settings.seed
        length = draw_length(self.settings.isl, "isl", seed, index)
        raw = np.random.PCG64(stable_seed("random_tokens", seed, index)).random_raw(length)
        return Conversation(
            conversation_id=f"random-{index:04d}",
            category=self.kind,
            turns=None,
            prompt_token_ids=tuple(ordinary_ids[raw % np.uint64(len(ordinary_ids))].tolist()),
            output_len=draw_length(self.settings.osl, "osl", seed, index),
            seed=seed,
        )
