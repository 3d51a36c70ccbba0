"""Which weights a drafter computes with: what a result records, and what tells one head from another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from specbench.engine.config import EngineConfig
from specbench.engine.drafters.head_location import DRAFT_MODEL, find_draft_model, find_head
from specbench.engine.models.checkpoint import ModelLocation, find_model, resolve_model_config
from specbench.engine.models.loading import LoadedModel, compute_fingerprint


@dataclass(frozen=True)
class DraftIdentity:
    """A draft head or draft model.

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
    """Identify the weights of the drafter of ``engine``; None for one without a model.

    :raises InputError: no such head or model.
    """
    spec, part = engine.drafter, engine.drafter.model_part
    if part is None:
        return None
    if part == DRAFT_MODEL:
        draft = find_draft_model(spec.model)
        location, config = find_model(draft), resolve_model_config(draft)
        fingerprint = compute_fingerprint(location, config, draft.seed)
        return DraftIdentity(location.source, fingerprint, config.num_parameters)
    head = find_head(part, spec.model, engine.model)
    head_config = head.read_config(resolve_model_config(engine.model))
    files = ModelLocation("directory", head.source, head.directory)
    return DraftIdentity(head.source, compute_fingerprint(files, head_config, 0), head_config.num_parameters)
