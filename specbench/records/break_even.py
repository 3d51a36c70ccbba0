"""What a sweep says of where speculation stops paying."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PAYS, DOES_NOT_PAY, NOT_CLEAR, NOT_COMPARED = "pays", "does not pay", "not clear", "not compared"


@dataclass(frozen=True)
class BreakEvenCell:
    """One drafter and K at one concurrency, against no speculation at the same concurrency.

    :param point: index of the sweep's point; ``baseline_point`` that of the drafter none, None where there is none.
    :param rounds: rounds in which both were measured: what the speedup is a mean over.
    :param tokens_per_s: output throughput over all rounds; ``baseline_tokens_per_s`` likewise.
    :param speedup_pct: of output throughput, ``exp(mean d) - 1`` with ``d`` the log ratio within a round.
    :param ci_low_pct: of the interval at ``alpha``, which is what Holm's correction over the cells left to this one;
        None was not computed.
    :param verdict: ``pays`` or ``does not pay`` where the interval excludes 0, ``not clear`` where it does not or there
        is none, ``not compared`` where no round has both points.
    :param tokens_identical: did both points commit the same tokens; None: not known.
    """

    concurrency: int
    point: int
    baseline_point: int | None
    rounds: int
    tokens_per_s: float | None
    baseline_tokens_per_s: float | None
    speedup_pct: float | None
    ci_low_pct: float | None
    ci_high_pct: float | None
    alpha: float
    p_value: float | None
    p_holm: float | None
    verdict: str
    acceptance_length: float | None
    tokens_identical: bool | None


@dataclass(frozen=True)
class BreakEvenLine:
    """One drafter and K over concurrency.

    :param axes: what else of the sweep tells this line from the others, scenario key in full -> value.
    :param tree: of its points, see :class:`~specbench.records.Point`; ``draft_model`` likewise.
    :param pays_up_to: the largest concurrency at which it pays; ``stops_by`` the least above that at which it does not.
        Both None where no single break-even can be named.
    :param answer: in words: ``stops paying between 4 and 16``.
    """

    drafter: str
    draft_len: int
    axes: dict[str, Any]
    cells: list[BreakEvenCell]
    pays_up_to: int | None
    stops_by: int | None
    answer: str
    tree: dict[str, int] = field(default_factory=dict)
    draft_model: str | None = None


@dataclass(frozen=True)
class BreakEven:
    """The break-even map of a sweep.

    :param confidence: of all verdicts together.
    :param missing: why there is no map, and how to get one; None where there is one.
    """

    lines: list[BreakEvenLine] = field(default_factory=list)
    confidence: float = 0.95
    missing: str | None = None
