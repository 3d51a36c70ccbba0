"""What the drafter of this package declares. No torch here: ``specbench check`` reads it."""

from __future__ import annotations

from math import prod
from pathlib import Path

from specbench.engine.drafters.declaration import DrafterDeclaration, DraftWeights, Role, WeightsQuery
from specbench.engine.models.safetensors_header import read_headers
from specbench.errors import InputError

HEAD_DIM = 8
FILE_NAME = "bigram.safetensors"


def find_weights(query: WeightsQuery) -> DraftWeights:
    """The table in the directory ``drafter.model``."""
    path = Path(query.spec.model or ".") / FILE_NAME
    headers = read_headers([path])
    num_tokens = headers["embedding"].shape[0]
    if num_tokens != query.target_config.vocab_size:
        what = f"the table has {num_tokens} tokens and the target {query.target_config.vocab_size}"
        raise InputError(what, where="drafter.model")
    return DraftWeights(
        source=f"bigrams of {path.parent.name}",
        num_parameters=sum(prod(stored.shape) for stored in headers.values()),
        draft_vocab_size=num_tokens,
        kv_values_per_token=2 * HEAD_DIM,
        files=(path,) if query.with_files else (),
    )


BIGRAM = DrafterDeclaration(
    "bigram_drafter.drafter:BigramDrafter", Role.MODEL, weights="bigram_drafter.declaration:find_weights"
)
RECENT = DrafterDeclaration("bigram_drafter.drafter:RecentDrafter", Role.LOOKUP)
