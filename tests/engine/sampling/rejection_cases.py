"""A target and drafters over a dozen tokens, whose steps run for very many requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from engine_driver import tiny_config
from numpy.typing import NDArray
from sampling_reference import kept_probabilities, make_rows
from scipy import stats
from torch import Tensor

from specbench.engine.config import AcceptanceSpec, DrafterSpec
from specbench.engine.device_state import DeviceState
from specbench.engine.drafters.base import DraftStep
from specbench.engine.drafters.draft_choice import DrawnChoice
from specbench.engine.sampling.acceptance import Verification, build_acceptance
from specbench.engine.sampling.metadata import SamplingRows
from specbench.engine.sampling.params import SamplingParams

VOCABULARY = 12
FIRST = 0
"""The token that every request begins with."""
DRAFT_LEN = 2
PARAMS = {
    "temperature 0.7": SamplingParams(temperature=0.7),
    "temperature 1.0": SamplingParams(temperature=1.0),
    "temperature 1.3": SamplingParams(temperature=1.3),
    "top-k": SamplingParams(temperature=1.0, top_k=4),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8),
    "both": SamplingParams(temperature=1.3, top_k=6, top_p=0.9),
}


def random_table(seed: int, columns: int = VOCABULARY) -> Tensor:
    """Logits [V, columns] of the token after each token."""
    return torch.randn(VOCABULARY, columns, generator=torch.Generator().manual_seed(seed)) * 1.5


TARGET = random_table(1)


def unlikely_tokens(count: int) -> Tensor:
    """The ``count`` tokens that the target chooses least of all after the first token."""
    return TARGET[FIRST].argsort()[:count].sort().values


@dataclass(frozen=True)
class Draft:
    """A drafter: a table of logits [V, Vd], and which target ids its columns are; None: it looks tokens up.

    :param mixed: every other request is given a token that was looked up.
    """

    table: Tensor | None
    vocabulary: Tensor | None = None
    mixed: bool = False

    @property
    def size(self) -> int:
        return 0 if self.table is None else self.table.shape[1]


DRAFTS = {
    "good": Draft(TARGET + 0.3 * random_table(2)),
    "bad": Draft(random_table(3)),
    "adversarial": Draft(-3 * TARGET),
    "without likely tokens": Draft(random_table(4, 5), unlikely_tokens(5)),
    "looked up": Draft(None),
    "looked up or drawn": Draft(random_table(5, 7), torch.tensor([11, 0, 3, 5, 7, 2, 9]), mixed=True),
}


def look_up(token_ids: Tensor) -> Tensor:
    """The token that is proposed after each token where nothing is drawn."""
    return TARGET.argsort(dim=1)[:, -2][token_ids]


@dataclass
class Batch:
    """Requests in slots of their own, stepped together.

    :param params: of request i: ``params[i % len(params)]``; each request has a seed of its own.
    :param order: of the requests in a step; ``slots`` of the requests. None: as they come.
    :param draft_lens: draft tokens that request i proposes: ``draft_lens[i % len(draft_lens)]``.
    """

    draft: Draft
    params: Sequence[SamplingParams]
    count: int
    first_seed: int = 0
    order: Tensor | None = None
    slots: Tensor | None = None
    draft_lens: Sequence[int] = (DRAFT_LEN,)
    state: DeviceState = field(init=False)
    num_steps: int = field(init=False, default=0)
    num_accepted: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        base = tiny_config(max_batch_size=self.count, drafter=DrafterSpec("ngram", DRAFT_LEN), max_seq_len=16)
        config = replace(base, acceptance=AcceptanceSpec("rejection"))
        self.state = DeviceState(config, torch.device("cpu"), self.draft.size)
        self.slots = torch.arange(self.count) if self.slots is None else self.slots
        self.order = torch.arange(self.count) if self.order is None else self.order
        self.state.seeds[self.slots] = torch.arange(self.count) + self.first_seed
        self.state.num_tokens[self.slots] = 1
        self.state.token_ids[self.slots, 0] = FIRST
        self._acceptance = build_acceptance(config.acceptance, DRAFT_LEN, self.draft.vocabulary)
        self._choice = DrawnChoice()
        self._lens = torch.tensor(self.draft_lens)[torch.arange(self.count) % len(self.draft_lens)]

    @property
    def tokens(self) -> Tensor:
        """[count, positions], by request."""
        assert self.slots is not None
        return self.state.token_ids[self.slots]

    def run(self, num_tokens: int) -> Tensor:
        """Step until every request has ``num_tokens`` after the first one; return those [count, num_tokens]."""
        assert self.order is not None
        assert self.slots is not None
        going_on = self.order
        while len(going_on):
            self.step(going_on)
            going_on = going_on[self.state.num_tokens[self.slots[going_on]] <= num_tokens]
        return self.tokens[:, 1 : num_tokens + 1]

    def step(self, requests: Tensor) -> None:
        """Draft and judge for ``requests``, in their order."""
        assert self.slots is not None
        slots, state, count = self.slots[requests], self.state, len(requests)
        drafts = self._draft(requests, slots)
        num_tokens = state.num_tokens[slots]
        last = state.token_ids[slots, num_tokens - 1].unsqueeze(1)
        logits = TARGET[torch.cat([last, drafts], dim=1).flatten()]
        sampling = self._rows(requests, DRAFT_LEN + 1)
        positions = num_tokens.unsqueeze(1) + torch.arange(DRAFT_LEN + 1)
        seeds = state.seeds[slots].repeat_interleave(DRAFT_LEN + 1)
        selection, probability = self._acceptance.select(logits, sampling, seeds, positions.flatten(), drafts)
        shape = (count, DRAFT_LEN + 1)
        token_ids, num_committed = self._acceptance.accept(state, Verification(
            slots, num_tokens, selection.token_ids.view(shape), drafts, self._lens[requests], logits, sampling,
            None if probability is None else probability.view(shape)[:, :-1],
        ))  # fmt: skip
        state.commit(slots, token_ids, num_committed)
        self.num_steps += count
        self.num_accepted += int(num_committed.sum()) - count

    def _rows(self, requests: Tensor, per_request: int) -> SamplingRows:
        period = make_rows(self.params, [1] * len(self.params))
        index = (requests % len(self.params)).repeat_interleave(per_request)
        rows = SamplingRows(period.temperature[index], period.top_k[index], period.top_p[index], period.facts)
        return rows.narrowed()

    def _draft(self, requests: Tensor, slots: Tensor) -> Tensor:
        temperature = self._rows(requests, 1).temperature
        before = self.state.token_ids[slots, self.state.num_tokens[slots] - 1]
        drafts: list[Tensor] = []
        for place in range(DRAFT_LEN):
            token_ids = look_up(before)
            if self.draft.table is not None:
                step = DraftStep(slots, DRAFT_LEN, None, temperature=temperature)
                drawn = self._choice.choose(self.state, step, place, self.draft.table[before])
                drawn = drawn if self.draft.vocabulary is None else self.draft.vocabulary[drawn]
                token_ids = torch.where(requests % 2 == 0, token_ids, drawn) if self.draft.mixed else drawn
            drafts.append(token_ids)
            before = token_ids
        if self.draft.mixed:
            self.state.drafts_are_drawn[slots[requests % 2 == 0]] = False
        return torch.stack(drafts, dim=1)


def exact_pairs(params: SamplingParams) -> NDArray[np.float64]:
    """The probability of each pair of tokens after the first one, [V, V], without speculation."""
    table = TARGET.numpy()
    rows = np.stack([kept_probabilities(table[token], params)[0] for token in range(VOCABULARY)])
    pairs: NDArray[np.float64] = rows[FIRST][:, None] * rows
    return pairs


def p_value(tokens: Tensor, expected: NDArray[np.float64]) -> float:
    """Of Pearson's chi-square test that pairs ``tokens`` [n, 2] come from ``expected`` [V, V]; 0 if some cannot."""
    size = expected.shape[0]
    counts = np.bincount((tokens[:, 0] * size + tokens[:, 1]).numpy(), minlength=size * size).astype(np.float64)
    means = expected.flatten() * len(tokens)
    if counts[means == 0.0].any():
        return 0.0
    rare = means < 5.0
    observed, means = np.append(counts[~rare], counts[rare].sum()), np.append(means[~rare], means[rare].sum())
    kept = means > 0.0
    return float(stats.chisquare(observed[kept], means[kept] * (observed.sum() / means.sum())).pvalue)
