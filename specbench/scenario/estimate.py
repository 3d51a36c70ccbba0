"""How much work a workload is, without a tokenizer: for `check`, before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from specbench.registry import WORKLOADS
from specbench.scenario.conflicts import SYNTHETIC
from specbench.workloads.base import Workload, WorkloadSettings

if TYPE_CHECKING:
    from specbench.workloads.tokenizer import Tokenizer


class _Uncounted:
    """Stands where a workload wants a tokenizer; selecting conversations needs none of its ids."""

    vocab_size = 0
    is_natural = True
    source = "none"
    special_token_ids: frozenset[int] = frozenset()

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"counting requests needs no {name}")


def count_requests(settings: WorkloadSettings) -> int | None:
    """Requests (turns) that ``settings`` select; None where only a tokenizer could tell.

    :raises WorkloadError: the data cannot be read; :raises UnknownNameError: a category that it does not have.
    """
    if settings.kind == SYNTHETIC:
        return settings.num_requests
    whole = replace(settings, num_requests=None)
    factory = WORKLOADS.load(settings.kind, where="workload.kind")
    workload: Workload = factory(whole, vocab_size=0, tokenizer=cast("Tokenizer", _Uncounted()))
    try:
        turns = sum(conversation.num_turns for conversation in workload.conversations())
    except NotImplementedError:
        return settings.num_requests
    return settings.num_requests or turns
