"""Watches what drafters propose in a running engine, and compares it with what a plain implementation would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.device.recording import runtime_operator
from specbench.engine.config import DrafterSpec, EngineConfig
from specbench.engine.drafters.base import Drafter, DraftState, DraftStep
from specbench.engine.sampling.params import SamplingParams
from tests.engine.engine_driver import Outcome, run, tiny_config, with_variants

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
PROMPTS = [[(i * 7 + j * 13) % 512 for j in range(1 + 9 * i)] for i in range(6)]
"""Of 1 to 46 tokens; more of them than the tiny engine has slots."""

RUNTIME_LENS = ((2, 3), (3, 0))
"""K = 0 where three or four requests run, 3 where one or two are left."""

Params = SamplingParams | Sequence[SamplingParams]

STAGGERED = [replace(GREEDY, max_tokens=6 + 5 * index) for index in range(len(PROMPTS))]
"""Ends of requests such that those that are left have seen steps of both kinds of :data:`RUNTIME_LENS`."""

CASES: list[dict[str, Any]] = [
    {},
    {"overlap": True},
    {"graphs": "captured"},
    {"overlap": True, "graphs": "captured", "attention": "torch-gather"},
    {"overlap": True, "max_num_tokens": 24},
    {"max_num_tokens": 24, "graphs": "captured", "attention": "torch-gather"},
    {"overlap": True, "num_blocks": 16},
    {"graphs": "captured", "num_blocks": 16},
    {"attention": "torch-gather", "num_blocks": 16, "max_num_tokens": 24},
]
"""Overlap, captured steps (whose batches are padded), prompts in chunks, preemption, both backends."""


def case_id(case: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in case.items()) or "plain"


Oracle = Callable[[list[int], int], tuple[list[int], Tensor | None]]
"""(committed tokens, K) -> the draft tokens, fewer than K where no more are found, and their logits [K, Vd]."""


@dataclass(frozen=True)
class Proposal:
    """What a drafter put into the state for one request.

    :ivar token_ids: committed tokens; ``drafts`` all K columns, of which ``num_drafts`` are proposed.
    :ivar logits: [K, Vd] of the model that drafted, where they were watched.
    """

    token_ids: list[int]
    drafts: list[int]
    num_drafts: int
    logits: Tensor | None


@dataclass
class DraftLog:
    proposals: list[Proposal] = field(default_factory=list)
    _logits: list[Tensor] = field(default_factory=list)

    def note_logits(self, logits: Tensor) -> None:
        self._logits.append(logits.clone())

    def note(self, slots: Tensor, state: tuple[Tensor, ...], draft_len: int, padding_slot: int) -> None:
        token_ids, num_tokens, drafts, num_drafts = state
        logits = torch.stack(self._logits, dim=1) if self._logits else None
        self._logits.clear()
        for row, slot in enumerate(slots.tolist()):
            if slot == padding_slot:
                continue
            self.proposals.append(
                Proposal(
                    token_ids[slot, : int(num_tokens[slot])].tolist(),
                    drafts[slot, :draft_len].tolist(),
                    int(num_drafts[slot]),
                    None if logits is None else logits[row],
                )
            )


@contextmanager
def watching(drafter_class: type[Drafter], head_class: type | None = None) -> Iterator[DraftLog]:
    """What drafters of the class propose meanwhile, in captured steps too; logits of ``head_class``."""
    log = DraftLog()
    # Opaque to a recording, and so called again at every replay.
    note, note_logits = runtime_operator("note")(log.note), runtime_operator("note_logits")(log.note_logits)
    draft = drafter_class.draft

    def watched_draft(self: Drafter, state: DraftState, step: DraftStep) -> None:
        draft(self, state, step)
        tensors = (state.token_ids, state.num_tokens, state.draft_token_ids, state.num_draft_tokens)
        note(step.slots, tensors, step.draft_len, state.token_ids.shape[0] - 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafter_class, "draft", watched_draft)
        if head_class is not None:
            compute_logits = head_class.compute_logits  # type: ignore[attr-defined]

            def watched_logits(self: Any, hidden: Tensor) -> Tensor:
                logits: Tensor = compute_logits(self, hidden)
                note_logits(logits)
                return logits

            patch.setattr(head_class, "compute_logits", watched_logits)
        yield log


def config_of(case: dict[str, Any], drafter: DrafterSpec, **changes: Any) -> EngineConfig:
    given = {**case, **changes}
    graphs = given.pop("graphs", "off")
    return with_variants(tiny_config(drafter=drafter, **given), graphs=graphs)


def without_speculation(params: Params = GREEDY, prompts: Sequence[Sequence[int]] = PROMPTS) -> Outcome:
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
    return _run_plainly(tuple(map(tuple, prompts)), tuple(each))


@cache
def _run_plainly(prompts: tuple[tuple[int, ...], ...], params: tuple[SamplingParams, ...]) -> Outcome:
    return run(tiny_config(), prompts, params, concurrency=4)


def compare(log: DraftLog, oracle: Oracle, *, every: int = 1) -> int:
    """How many proposals are those of ``oracle``; fails at the first that is not."""
    drafted = [proposal for proposal in log.proposals if proposal.drafts][::every]
    for proposal in drafted:
        check_proposal(proposal, oracle)
    return len(drafted)


def check_followed(outcome: Outcome, log: DraftLog, oracle: Oracle) -> None:
    """Of :data:`STAGGERED` requests under :data:`RUNTIME_LENS`: the cache has followed where nothing was drafted."""
    assert outcome.outputs == without_speculation(STAGGERED).outputs
    drafted = [bool(proposal.drafts) for proposal in log.proposals]
    assert 0 < sum(drafted) < len(drafted)
    assert compare(log, oracle) > 5


def check_proposal(proposal: Proposal, oracle: Oracle) -> None:
    expected, logits = oracle(proposal.token_ids, len(proposal.drafts))
    assert proposal.num_drafts == len(expected)
    assert proposal.drafts[: len(expected)] == expected, f"after {len(proposal.token_ids)} tokens"
    if logits is not None and proposal.logits is not None:
        torch.testing.assert_close(proposal.logits, logits, rtol=1e-3, atol=1e-3)
