"""Tiny engines that draft with a random head, watched, and what plain heads would propose in their place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import Drafter
from specbench.engine.drafters.eagle3 import Eagle3Head
from specbench.engine.drafters.head_weights import LoadedHead
from specbench.engine.drafters.model_drafter import ModelDrafter
from specbench.engine.drafters.mtp import MtpDrafter, MtpHead
from tests.engine.drafters.draft_checks import GREEDY, PROMPTS, DraftLog, Oracle, Params, config_of, watching
from tests.engine.drafters.head_cases import TAPPED, dense_forward, target_states, using_head
from tests.engine.drafters.plain_heads import eagle3_draft, mtp_draft
from tests.engine.engine_driver import Outcome, run, tiny_model

MANY_SMALL_BLOCKS = {"tokens_per_block": 2, "num_blocks": 400}
_WATCHED: dict[str, tuple[type[Drafter], type]] = {
    "eagle3": (ModelDrafter, Eagle3Head),
    "mtp": (MtpDrafter, MtpHead),
}


def oracle_of(head: LoadedHead) -> Oracle:
    """Drafts of the plain head."""
    return eagle3_oracle(head) if head.config.kind == "eagle3" else mtp_oracle(head)


def eagle3_oracle(head: LoadedHead) -> Oracle:
    def draft(token_ids: list[int], draft_len: int) -> tuple[list[int], Tensor]:
        return eagle3_draft(token_ids, target_states(token_ids[:-1], TAPPED), head, draft_len)

    return draft


def mtp_oracle(head: LoadedHead) -> Oracle:
    def draft(token_ids: list[int], draft_len: int) -> tuple[list[int], Tensor]:
        return plain_modules(token_ids, head, draft_len)

    return draft


def plain_modules(
    token_ids: list[int], head: LoadedHead, draft_len: int, given: list[int] | None = None
) -> tuple[list[int], Tensor]:
    """:func:`mtp_draft` behind the tiny model, whose embedding and head are one."""
    model = tiny_model().model
    weight = model.head_rows(None)
    return mtp_draft(token_ids, dense_forward(model, token_ids[:-1]), (weight, weight), head, draft_len, given)


def run_head(
    head: LoadedHead,
    case: dict[str, Any],
    spec: DrafterSpec,
    params: Params = GREEDY,
    *,
    prompts: list[list[int]] = PROMPTS,
    **changes: Any,
) -> tuple[Outcome, DraftLog]:
    """Four of ``prompts`` at a time."""
    with using_head(head), watching(*_WATCHED[head.config.kind]) as log:
        return run(config_of(case, spec, **changes), prompts, params, concurrency=4), log
