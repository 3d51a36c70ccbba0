"""What it means that the arms' tokens differ: by the exactness that the pair declares, never by how fast it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.engine.optimizations.base import Exactness
from specbench.measure.effects import NO_TOKENS
from specbench.measure.labels import REPLAYED, split_label
from specbench.measure.unit_table import THROUGHPUT, TIME, UnitTable
from specbench.measure.units import MeasuredBlock
from specbench.records import Divergence, Gate
from specbench.scenario.plan import MIRRORED, ComparisonPlan, RunPlan

TOKENS_DIFFER = "tokens differ"
GATE = "tokens"
_CHANGED = (Exactness.CHANGES_OUTPUT.value, Exactness.KNOWN_DEFECT.value)


@dataclass(frozen=True)
class TokenOutcome:
    """What was found and what follows from it.

    :param identical: None where what was measured tells no token ids.
    :param divergence: the first in unit order.
    :param metric: ``time`` where both arms committed as many tokens and none is known to differ, else ``throughput``.
    :param rule: what this pair's exactness asks for, in words.
    :param unusable: why no ratio can be computed at all.
    """

    identical: bool | None
    divergence: Divergence | None
    metric: str
    rule: str
    gate: Gate
    output_changed: bool = False
    unusable: str | None = None
    invalid_reasons: tuple[str, ...] = field(default=())


def judge_tokens(
    plan: RunPlan, comparison: ComparisonPlan, blocks: Sequence[MeasuredBlock], units: UnitTable
) -> TokenOutcome:
    """Hold the arms' tokens against the rule of the pair's exactness.

    :param units: of ``blocks``, or as many of them as a look saw.
    """
    identical = _identical(blocks)
    if not units.equal_tokens:
        identical = False
    divergence = next((t.divergence for block in blocks for t in block.trials if t.divergence), None)
    metric = TIME if identical is not False else THROUGHPUT
    rule, status = _apply(plan, comparison, blocks, units, identical)
    detail = _describe(identical, divergence, units)
    unusable = NO_TOKENS if metric == THROUGHPUT and len(units) and not _all_committed(units) else None
    reasons = [f"{GATE}: {detail}"] if status == "fail" else []
    reasons += [unusable] if unusable else []
    return TokenOutcome(
        identical=identical,
        divergence=divergence,
        metric=metric,
        rule=rule,
        gate=Gate(GATE, "fail" if unusable else status, unusable or detail),
        output_changed=comparison.exactness in _CHANGED,
        unusable=unusable,
        invalid_reasons=tuple(reasons),
    )


def _all_committed(units: UnitTable) -> bool:
    return bool(units.baseline.tokens.all() and units.candidate.tokens.all())


def _identical(blocks: Sequence[MeasuredBlock]) -> bool | None:
    """Are the arms' outputs equal, block by block? None where no ids are known."""
    if any(trial.divergence for block in blocks for trial in block.trials):
        return False
    hashes = [{trial.tokens_sha256 for trial in block.trials} for block in blocks]
    if any(len(found - {None}) > 1 for found in hashes):
        return False
    return None if not hashes or any(None in found for found in hashes) else True


def _apply(
    plan: RunPlan,
    comparison: ComparisonPlan,
    blocks: Sequence[MeasuredBlock],
    units: UnitTable,
    identical: bool | None,
) -> tuple[str, str]:
    """The rule in words, and the gate's status under it."""
    exactness = comparison.exactness
    unknown = "n/a" if identical is None else "pass"
    if exactness == Exactness.BIT_IDENTICAL.value:
        return "bit-identical: a token that differs makes the comparison INVALID", (
            "fail" if identical is False else unknown
        )
    if exactness == Exactness.NUMERICALLY_EQUIVALENT.value:
        return _apply_numerics(plan, comparison, blocks, units, identical)
    if exactness == Exactness.DISTRIBUTION_PRESERVING.value:
        return "distribution-preserving: tokens are draws of the same distribution and need not be equal", "n/a"
    text = f"{exactness}: the output changes by declaration, which the verdict says first"
    return text, "warn" if identical is False else unknown


def _apply_numerics(
    plan: RunPlan,
    comparison: ComparisonPlan,
    blocks: Sequence[MeasuredBlock],
    units: UnitTable,
    identical: bool | None,
) -> tuple[str, str]:
    dtypes = {_dtype(plan, comparison.baseline, blocks), _dtype(plan, comparison.candidate, blocks)}
    unknown = "n/a" if identical is None else "pass"
    if dtypes == {"float32"}:
        rule = "numerically-equivalent, measured in float32: tokens must be identical"
        return rule, "fail" if identical is False else unknown
    name = " and ".join(sorted(dtypes))
    if any(REPLAYED in split_label(trial.label) for block in blocks for trial in block.trials):
        rule = (
            f"numerically-equivalent, measured in {name} with replayed acceptance: as many tokens a step, not the same"
        )
        return rule, "pass" if units.equal_tokens else "warn"
    rule = f"numerically-equivalent, measured in {name}: tokens may differ, and are then compared by tokens per second"
    return rule, "warn" if identical is False else unknown


def _dtype(plan: RunPlan, point: int, blocks: Sequence[MeasuredBlock]) -> str:
    """Of the weights, as the point's scenario says, else as what was measured describes itself."""
    scenario = plan.points[point].scenario or plan.scenario
    found = (scenario.get("engine") or {}).get("dtype")
    described = (t.subject.get("engine", {}).get("dtype") for block in blocks for t in block.trials)
    return str(found or next((dtype for dtype in described if dtype), "an unknown dtype"))


def _describe(identical: bool | None, divergence: Divergence | None, units: UnitTable) -> str:
    before, after = int(units.baseline.tokens.sum()), int(units.candidate.tokens.sum())
    counts = f"{before} tokens in each arm" if before == after else f"{before} tokens against {after}"
    if identical is None:
        return f"token ids are not known; {counts}"
    if identical:
        return f"identical; {counts}"
    where = describe_divergence(divergence)
    return f"{TOKENS_DIFFER}: {where}; {counts}" if where else f"{TOKENS_DIFFER}; {counts}"


def describe_divergence(divergence: Divergence | None) -> str:
    """Where outputs first differ, in words; empty where it is not known."""
    if divergence is None:
        return ""
    tokens = [
        "the end" if token is None else f"token {token}"
        for token in (divergence.baseline_token_id, divergence.candidate_token_id)
    ]
    margin = "" if divergence.margin is None else f", {divergence.margin:.3g} apart in logits"
    place = f"{divergence.request_id}, output position {divergence.position}"
    return f"first at {place}: {tokens[0]} against {tokens[1]}{margin}"


def repeatability_gate(comparison: ComparisonPlan, blocks: Sequence[MeasuredBlock]) -> Gate:
    """Did equal runs of one arm commit equal tokens? Else a difference between the arms says nothing."""
    name = "repeatable"
    if comparison.design == MIRRORED:
        return Gate(name, "n/a", "a pass runs both arms by turns; its repetition is held against it under tokens")
    known = differing = 0
    for block in blocks:
        for arm in ("A", "B"):
            hashes = {trial.tokens_sha256 for trial in block.trials if trial.arm == arm}
            known += None not in hashes
            differing += len(hashes - {None}) > 1
    if differing:
        strict = comparison.exactness == Exactness.BIT_IDENTICAL.value
        detail = f"{differing} times the two runs of one arm and unit committed different tokens"
        return Gate(name, "fail" if strict else "warn", detail)
    if not known:
        return Gate(name, "n/a", "token ids are not known")
    return Gate(name, "pass", f"{known} pairs of equal runs, equal tokens")
