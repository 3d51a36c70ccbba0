"""What step records say of draft tokens, against a recount from tokens and proposals alone, for every drafter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.config import DrafterSpec
from specbench.engine.drafters.base import Drafter, DraftState, DraftStep
from specbench.engine.drafters.draft_model import DraftModelDrafter
from specbench.engine.drafters.model_drafter import ModelDrafter
from specbench.engine.drafters.ngram import NgramDrafter
from specbench.engine.drafters.pair import PairDrafter
from specbench.engine.sampling.params import SamplingParams
from tests.engine.drafters.draft_checks import GREEDY, DraftLog, config_of, watching
from tests.engine.drafters.head_cases import eagle3_head, mtp_head, using_head
from tests.engine.drafters.test_pair import PROMPTS
from tests.engine.engine_driver import Outcome, run, tiny_config

DRAFT_LEN = 3
DRAFTERS: dict[str, type[Drafter]] = {
    "ngram": NgramDrafter,
    "eagle3": ModelDrafter,
    "mtp": ModelDrafter,
    "draft_model": DraftModelDrafter,
    "ngram+eagle3": PairDrafter,
}
MIXED: dict[str, Any] = {"overlap": True, "graphs": "captured", "max_num_tokens": 24}
"""Prompts in chunks beside generation, batches of 1 to 4, some of them padded to a captured size."""


@cache
def outputs_of(params: tuple[SamplingParams, ...]) -> list[list[int]]:
    """Of plain decoding."""
    return run(tiny_config(), PROMPTS, params, concurrency=4).outputs


FREE = (GREEDY,) * len(PROMPTS)


@contextmanager
def helped(drafter_class: type[Drafter], known: list[list[int]]) -> Iterator[None]:
    """Some of what drafters of the class propose is what will follow: random heads are never right by themselves."""
    truth = {tuple(sequence[:end]): sequence[end:] for sequence in known for end in range(1, len(sequence))}

    @runtime_operator("help")
    def correct(slots: Tensor, token_ids: Tensor, num_tokens: Tensor, drafts: Tensor, draft_len: int) -> None:
        for slot in slots.tolist():
            seen = token_ids[slot, : int(num_tokens[slot])].tolist()
            right = truth.get(tuple(seen), [])[: min(len(seen) % (DRAFT_LEN + 2), draft_len)]
            drafts[slot, : len(right)] = torch.tensor(right, dtype=torch.int64)

    draft = drafter_class.draft

    def helped_draft(self: Drafter, state: DraftState, step: DraftStep) -> None:
        draft(self, state, step)
        correct(step.slots, state.token_ids, state.num_tokens, state.draft_token_ids, step.draft_len)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafter_class, "draft", helped_draft)
        yield


@dataclass
class Counts:
    """By draft position."""

    opened: list[int]
    eligible: list[int]
    drafted: list[int]
    accepted: list[int]

    @classmethod
    def none(cls) -> Counts:
        return cls(*([0] * DRAFT_LEN for _ in range(4)))


def recount(outcome: Outcome, log: DraftLog) -> tuple[Counts, int]:
    """Walk through every output, a step at a time; also how many ended inside a draft."""
    counts, ended_inside = Counts.none(), 0
    proposals = {tuple(proposal.token_ids): proposal for proposal in log.proposals}
    for request in outcome.requests:
        whole = [*request.prompt_token_ids, *request.output_token_ids]
        end = len(request.prompt_token_ids) + 1
        while end < len(whole):
            proposal, left = proposals[tuple(whole[:end])], whole[end:]
            accepted = 0
            drafts = proposal.drafts[: proposal.num_drafts]
            while accepted < min(len(drafts), len(left)) and drafts[accepted] == left[accepted]:
                accepted += 1
            # A last token that was a draft token: the target's own behind it is not in the output.
            is_cut = accepted == len(left)
            ended_inside += is_cut
            for position in range(DRAFT_LEN):
                counts.opened[position] += not is_cut or position < accepted
                counts.eligible[position] += position < accepted or (position == accepted and not is_cut)
                counts.drafted[position] += position < (accepted if is_cut else len(drafts))
                counts.accepted[position] += position < accepted
            end += accepted + 1
    return counts, ended_inside


def recorded(outcome: Outcome) -> Counts:
    counts = Counts.none()
    for step in outcome.steps:
        for name in ("opened", "eligible", "drafted", "accepted"):
            by_position: list[int] = getattr(counts, name)
            for position, count in enumerate(getattr(step, name)):
                by_position[position] += count
    return counts


def ends_for() -> tuple[SamplingParams, ...]:
    """An end of sequence for every other request, some tokens into what it would put out; a length for the others."""
    params = []
    for index, output in enumerate(outputs_of(FREE)):
        ends = {"stop_token_ids": (output[9 + index],)} if index % 2 else {"max_tokens": 15 + index}
        params.append(replace(GREEDY, **ends))
    return tuple(params)


def run_drafter(name: str, case: dict[str, Any]) -> tuple[Outcome, DraftLog]:
    params, drafter_class = ends_for(), DRAFTERS[name]
    spec = DrafterSpec(name, DRAFT_LEN, model="random:tiny" if name == "draft_model" else None)
    with ExitStack() as stack:
        for head in (eagle3_head(), mtp_head()):
            stack.enter_context(using_head(head))
        known = [[*prompt, *output] for prompt, output in zip(PROMPTS, outputs_of(FREE), strict=True)]
        stack.enter_context(helped(drafter_class, known))
        log = stack.enter_context(watching(drafter_class))
        outcome = run(config_of(case, spec), PROMPTS, params, concurrency=4)
    assert outcome.outputs == outputs_of(params)
    return outcome, log


@pytest.mark.parametrize("name", DRAFTERS)
def test_records_agree_with_a_recount_from_tokens(name: str) -> None:
    outcome, log = run_drafter(name, MIXED)
    counts, ended_inside = recount(outcome, log)
    assert recorded(outcome) == counts
    assert ended_inside > 0, "no sequence ended inside a draft"
    assert 0 < counts.accepted[0] < counts.eligible[0]
    assert counts.accepted[-1] > 0 or name == "ngram", "what a lookup finds may be short"
    assert sum(step.num_context_tokens for step in outcome.steps) == sum(map(len, PROMPTS))  # type: ignore[attr-defined]


def test_rates_do_not_depend_on_how_steps_run() -> None:
    plain, mixed = (run_drafter("ngram+eagle3", case)[0] for case in ({}, MIXED))
    assert recorded(plain) == recorded(mixed)


def test_a_recount_can_disagree() -> None:
    outcome, log = run_drafter("eagle3", {})
    request = outcome.requests[1]
    request.output_token_ids.pop()
    assert recorded(outcome) != recount(outcome, log)[0]
