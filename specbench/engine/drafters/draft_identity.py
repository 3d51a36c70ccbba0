"""Which weights a drafter computes with: what a result records, and what tells one head from another. No torch here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.engine.config import EngineConfig
from specbench.engine.drafters.declaration import WeightsQuery
from specbench.engine.drafters.draft_weights import find_draft_weights
from specbench.engine.models.checkpoint import resolve_model_config
from specbench.engine.models.fingerprint import digest_weights

if TYPE_CHECKING:
    from specbench.engine.models.loading import LoadedModel


@dataclass(frozen=True)
class DraftIdentity:
    """The weights of a drafter.

    :param source: what was loaded, for people.
    :param fingerprint: as :class:`LoadedModel` has it, of the drafter's weights and configuration.
    """

    source: str
    fingerprint: str
    num_parameters: int

    def join(self, target: LoadedModel) -> str:
        """One fingerprint of target and drafter, which differs when either does."""
        return hashlib.sha256(f"{target.fingerprint} {self.fingerprint}".encode()).hexdigest()


def find_draft_identity(engine: EngineConfig) -> DraftIdentity | None:
    """Identify the weights of the drafter of ``engine``; None for one without.

    :raises InputError: no such head or model.
    """
    if engine.drafter.model_part is None:
        return None
    target = resolve_model_config(engine.model)
    query = WeightsQuery(engine.drafter, engine.model, target, engine.max_seq_len, with_files=True)
    found = find_draft_weights(query)
    if found is None:
        return None
    return DraftIdentity(found.source, digest_weights(found.configuration or {}, found.files), found.num_parameters)
