"""The weights of the drafters of this package, from configurations and headers alone. No torch here."""

from __future__ import annotations

from dataclasses import asdict, replace

from specbench.engine.config import ModelSpec
from specbench.engine.drafters.declaration import DraftWeights, WeightsQuery, load_declaration
from specbench.engine.drafters.head_config import HeadConfig, HeadKind
from specbench.engine.drafters.head_location import check_draft_model, find_draft_model, find_head, in_drafter_model
from specbench.engine.models.checkpoint import ModelLocation, existing_path, find_model, resolve_model_config
from specbench.engine.models.config import ModelConfig
from specbench.engine.models.fingerprint import describe_configuration, weight_files
from specbench.engine.models.model_files import check_model_files
from specbench.registry import PRESETS


def find_draft_weights(query: WeightsQuery) -> DraftWeights | None:
    """The weights of the drafter that ``query`` specifies, alone or in a pair; None for one without.

    :raises InputError: no such weights, or they do not fit the target or the draft length; or files that are damaged or
        hold other tensors than their configuration calls for. ``where`` begins with the key of the drafter.
    """
    part = query.spec.model_part
    if part is None:
        return None
    with in_drafter_model():
        return load_declaration(part).find_weights(query)


def find_eagle3_weights(query: WeightsQuery) -> DraftWeights:
    """See :attr:`DrafterDeclaration.weights`."""
    source, head, files = _find_head("eagle3", query)
    return _head_weights(source, head, head.decoder, files)


def find_mtp_weights(query: WeightsQuery) -> DraftWeights:
    """See :attr:`DrafterDeclaration.weights`. Of several modules as many keep keys and values as are used."""
    source, head, files = _find_head("mtp", query)
    used = replace(head.decoder, num_layers=head.num_modules_for(query.spec.max_draft_len))
    return _head_weights(source, head, used, files)


def find_draft_model_weights(query: WeightsQuery) -> DraftWeights:
    """See :attr:`DrafterDeclaration.weights`."""
    spec = find_draft_model(query.spec.model)
    location = _locate_model(spec, query.with_files)
    config = resolve_model_config(spec) if location is None else location.read_config()
    check_draft_model(config, query.target_config, query.max_seq_len)
    if location is not None:
        check_model_files(location, config)
    told = location if query.with_files else None
    return DraftWeights(
        spec.source if told is None else told.source,
        config.num_parameters,
        query.target_config.vocab_size,
        config.kv_bytes_per_token(1),
        describe_configuration(config, spec.seed if told is not None and told.random else None),
        () if told is None else tuple(weight_files(told)),
    )


def _locate_model(spec: ModelSpec, with_files: bool) -> ModelLocation | None:
    """Where a draft model's files are; None for a preset that may still be pulled. A path is to hold weights."""
    if spec.source in PRESETS and not with_files:
        return None
    return find_model(spec, weights=with_files or existing_path(spec.source) is not None)


def _find_head(kind: HeadKind, query: WeightsQuery) -> tuple[str, HeadConfig, ModelLocation | None]:
    """What to print of a head, its configuration, and its files where they were asked for."""
    found = find_head(kind, query.spec.model, query.target, weights=query.with_files)
    config = found.read_config(query.target_config)
    return found.source, config, ModelLocation("directory", found.source, found.directory) if query.with_files else None


def _head_weights(source: str, head: HeadConfig, used: ModelConfig, files: ModelLocation | None) -> DraftWeights:
    """:param used: the layers that keep keys and values."""
    return DraftWeights(
        source,
        head.num_parameters,
        head.draft_vocab_size,
        used.kv_bytes_per_token(1),
        asdict(head),
        () if files is None else tuple(weight_files(files)),
    )
