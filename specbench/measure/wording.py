"""What to make of a comparison, in sentences: what the figures alone would let a reader get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specbench.engine.optimizations.base import Exactness
from specbench.engine.optimizations.defects import KNOWN_DEFECT
from specbench.measure.ab_gates import MIN_UNITS
from specbench.measure.labels import SIMULATED, split_label
from specbench.measure.sampling_audit import NAME as SAMPLING_GATE
from specbench.measure.token_rules import describe_divergence
from specbench.measure.unit_table import THROUGHPUT
from specbench.records import BUDGET, Comparison, Effect, LookRecord, RangeEffect
from specbench.stats.verdict import Verdict
from specbench.workloads.base import NATURAL

MOST_RANGES = 3
MOST = 0.5
SMALL_SHARE = 0.02
"""Share of a step below which host work is called small."""
EXPOSED, HIDDEN = 0.9, 0.1
"""Share of the host's preparation during which the device idles, above which it counts in full, and below which not."""
DIFFERENT = (Verdict.FASTER.value, Verdict.SLOWER.value)
CLEARLY = 1.5
"""Half widths of its interval by which a range must have moved to be spoken of: there are many ranges."""
ECHO = (0.7, 1.3)
"""Ratio of two ranges' changes between which they are one change, seen in a range and in the one around it."""
ACCEPTANCE_GAP = 5e-4
_PARTS = {
    "tokens_per_step": "tokens committed a step",
    "device": "device time",
    "host_exposed": "host work that the device waits for",
    "other_idle": "time in which neither the device nor a named host range was busy",
    "step": "time a step",
}


@dataclass(frozen=True)
class Occasion:
    """What is said beyond the comparison's own figures.

    :param family_size: comparisons that were corrected for one another.
    :param last_look: None where no look was taken; ``planned_end`` units (processes) were planned.
    :param is_interrupted: the command was, so that more may follow.
    :param injected: arm -> known defect put into it on purpose.
    :param warning: what the plan says of its own size.
    :param num_starts: interpreters that measured, over all processes.
    """

    family_size: int
    last_look: LookRecord | None
    planned_end: int
    counts_processes: bool = False
    is_interrupted: bool = False
    injected: dict[str, dict[str, object]] | None = None
    warning: str | None = None
    num_starts: int = 1


def put_in_words(comparison: Comparison, occasion: Occasion) -> list[str]:
    """Every sentence that applies, the most telling first."""
    sentences = [line for speak in _SPEAKERS for line in speak(comparison)]
    return [*sentences, *say_scope(comparison, occasion), *_of_occasion(comparison, occasion)]


def say_where_it_comes_from(comparison: Comparison) -> list[str]:
    """Of a difference: its largest part among those that are told from 0."""
    parts = comparison.decomposition
    if comparison.verdict not in DIFFERENT or not parts:
        return []
    total = sum(parts.values())
    sign = 1 if total > 0 else -1
    intervals = comparison.decomposition_pct
    resolved = [name for name in parts if parts[name] * sign > 0 and _excludes_zero(intervals.get(name))]
    if not resolved:
        return ["Where the difference comes from is not resolved: no part of it alone is told from none."]
    name = max(resolved, key=lambda part: parts[part] * sign)
    share = parts[name] / total
    lead = "Most of the difference is" if share > MOST else "Of the difference, what is told from none is mostly"
    line = f"{lead} {_PARTS.get(name, name)}: {_describe_part(parts[name], total)}."
    if name == "other_idle":
        line += " No named range shows it: look for waits, locks and work outside of the ranges."
    return [line]


def _describe_part(part: float, total: float) -> str:
    """How much of the whole a part is; of one that is more than the whole, what the others take back."""
    points = f"{100 * part:+.3f}"
    if part / total > 1:
        return f"{points} log points, of which the other parts leave {100 * total:+.3f}"
    return f"{points} of {100 * total:+.3f} log points ({100 * part / total:.0f}%)"


def _excludes_zero(effect: Effect | Comparison | None) -> bool:
    if effect is None or effect.ci_low_pct is None or effect.ci_high_pct is None:
        return False
    return effect.ci_low_pct > 0 or effect.ci_high_pct < 0


def say_hidden_work(comparison: Comparison) -> list[str]:
    """Host ranges that moved while throughput did not, and whether the device waits for them.

    Of a comparison whose own interval has no 0 in it, something moved, whatever the verdict lets be said of it.
    """
    negligible = comparison.verdict.endswith("NEGLIGIBLE")
    if comparison.verdict in DIFFERENT or (_excludes_zero(comparison) and not negligible):
        return []
    moved = [(name, effect) for name, effect in comparison.ranges.items() if _is_moved(name, effect)]
    moved.sort(key=lambda item: -abs(_change_us(item[1])))
    told: list[tuple[str, RangeEffect]] = []
    for name, effect in moved:
        # A range around another one moves with it, and is no second finding.
        change = _change_us(effect)
        if not any(ECHO[0] < change / _change_us(other) < ECHO[1] for _, other in told if _change_us(other)):
            told.append((name, effect))
    lines = [_describe_range(comparison, name, effect) for name, effect in told[:MOST_RANGES]]
    return [*lines, *_describe_hiding(comparison)] if lines else []


def _change_us(effect: RangeEffect) -> float:
    return effect.candidate_us - effect.baseline_us


def _is_moved(name: str, effect: RangeEffect) -> bool:
    low, high = effect.ci_low_pct, effect.ci_high_pct
    if effect.lane != "host" or name.startswith("wait") or low is None or high is None:
        return False
    return abs(high + low) / 2 > CLEARLY * (high - low) / 2


def _describe_range(comparison: Comparison, name: str, effect: RangeEffect) -> str:
    change = _change_us(effect)
    direction = "less" if change < 0 else "more"
    interval = f"{effect.delta_pct:+.1f}%, interval {effect.ci_low_pct:+.1f}% to {effect.ci_high_pct:+.1f}%"
    negligible = comparison.verdict.endswith("NEGLIGIBLE")
    outcome = "throughput moved by less than the margin" if negligible else "throughput did not clearly move"
    line = f"{name} takes {abs(change):.1f} µs a step {direction} ({interval}), yet {outcome}: "
    step_ms = comparison.step_ms.get("baseline", {}).get("step_ms")
    if step_ms is None or effect.share_pct is None:
        return f"{line}in the baseline it takes {effect.baseline_us:.1f} µs a step."
    place = f"in the baseline it is {effect.baseline_us:.1f} µs of a step of {step_ms:.3f} ms ({effect.share_pct:.2f}%)"
    return f"{line}{place}. {_describe_exposure(comparison, effect.share_pct / 100)}".rstrip()


def _waiting(comparison: Comparison) -> tuple[float, float, float] | None:
    """Of the baseline, milliseconds a step: all host preparation, that which the device waits for, and the step."""
    times = comparison.step_ms.get("baseline", {})
    total, exposed, step = times.get("host_total_ms"), times.get("host_exposed_ms"), times.get("step_ms")
    return (total, exposed, step) if total and exposed is not None and step else None


def _describe_exposure(comparison: Comparison, share: float) -> str:
    """What is to be gained from a range whose work the device waits for; nothing where it does not.

    :param share: of the baseline's step, the range.
    """
    waiting = _waiting(comparison)
    if waiting is None:
        return f"Whether the device works meanwhile is not known. {_describe_most(share, 'it entirely')}"
    total, exposed, step = waiting
    if exposed / total < EXPOSED:
        return ""
    size = "small beside the step" if total < SMALL_SHARE * step else "less than the noise hides"
    saved = f"what is saved there is saved, but is {size}. {_describe_most(share, 'it entirely')}"
    return f"This host work is exposed ({_describe_idling(exposed / total)}): {saved}"


def _describe_hiding(comparison: Comparison) -> list[str]:
    """Of host work that the device does not wait for: that less of it gains nothing, whatever a range takes."""
    waiting = _waiting(comparison)
    if waiting is None or waiting[1] / waiting[0] >= EXPOSED:
        return []
    total, exposed, step = waiting
    figure = _describe_idling(exposed / total)
    waits = f"the device waits {1e3 * exposed:.1f} of {1e3 * total:.1f} µs a step"
    line = f"The host's work is partly hidden ({figure}): {waits}."
    if exposed / total <= HIDDEN:
        line = f"The host's work is hidden ({figure}): no gain is expected from less of it, since {waits}."
    return [f"{line} {_describe_most(exposed / step, 'all of it')}"]


def _describe_idling(ratio: float) -> str:
    return f"the device idles during {ratio * 100:.0f}% of the host's preparation"


def _describe_most(share: float, what: str) -> str:
    """What a step gains that loses ``share`` of its time."""
    return f"Removing {what} could gain at most {100 * share / (1 - share):.2f}%." if share < 1 else ""


def say_tokens(comparison: Comparison) -> list[str]:
    """What differing tokens mean for this pair."""
    if comparison.tokens_identical is not False:
        return []
    where = describe_divergence(comparison.first_divergence)
    line = "Tokens differ" + (f", {where}." if where else ".")
    if comparison.exactness == Exactness.KNOWN_DEFECT.value:
        return [line]
    if comparison.exactness == Exactness.BIT_IDENTICAL.value or comparison.verdict == Verdict.INVALID.value:
        return [f"{line} This pair promises equal tokens, so a change of speed says nothing: find out why first."]
    if comparison.output_changed:
        return [f"{line} The output changes on purpose: judge its quality beside its speed."]
    if comparison.metric == THROUGHPUT:
        line += " The arms did not do the same work, so committed tokens per second are compared instead of time."
    return [f"{line} How many tokens a step commits is part of the difference; other prompts may commit others."]


def say_acceptance(comparison: Comparison) -> list[str]:
    """That the arms accept unlike much."""
    before, after = comparison.acceptance_length.get("baseline"), comparison.acceptance_length.get("candidate")
    if not before or not after or abs(after / before - 1) < ACCEPTANCE_GAP:
        return []
    return [f"Acceptance length is {after:.3f} tokens a request and step against {before:.3f} in the baseline."]


def say_how_much_is_missing(comparison: Comparison) -> list[str]:
    """Of INCONCLUSIVE: what could have been seen, and what it would take."""
    if comparison.verdict != Verdict.INCONCLUSIVE.value:
        return []
    lines = []
    if comparison.mde_pct is not None:
        lines.append(f"The smallest effect that this would find four times in five is {comparison.mde_pct:.2f}%.")
    if comparison.units_needed is not None:
        line = f"About {comparison.units_needed} units in all would settle a margin of {comparison.margin_pct:g}%"
        more = comparison.units_needed - comparison.n_units
        if comparison.units_per_minute and more > 0:
            line += f", some {max(more / comparison.units_per_minute, 0.1):.1f} minutes more at this pace"
        lines.append(f"{line}.")
    return lines


def say_scope(comparison: Comparison, occasion: Occasion) -> list[str]:
    """That one process is one memory layout, and a resumed one is several that nobody planned."""
    planned, starts = comparison.n_processes, occasion.num_starts
    if starts > planned > 0:
        noun = "the process" if planned == 1 else f"{planned} processes"
        line = f"Measured in {starts} starts of {noun} (resumed): each has its own memory layout and tuning, "
        return [f"{line}which the interval takes for noise of units (--processes 4 or more covers it)."]
    if planned != 1:
        return []
    return [
        "One process was measured: another start may differ by its memory layout and tuning (--processes 4 or more)."
    ]


def say_order(comparison: Comparison) -> list[str]:
    """That the arm that went first mattered."""
    return [
        f"The order of the arms matters: {gate.detail}. Both orders are in the mean, and it is not the same in both."
        for gate in comparison.gates
        if gate.name == "order" and gate.status == "warn"
    ]


def say_label(comparison: Comparison) -> list[str]:
    """What content that is not natural says."""
    parts = split_label(comparison.label)
    label = ", ".join(part for part in parts if part != KNOWN_DEFECT)
    if label in ("", NATURAL):
        return []
    lines = [f"The content is labelled {label}: acceptance, and what follows from it, is not that of real use."]
    if SIMULATED in parts:
        lines.append(
            "SIMULATED: the device's times are declared. What is measured is the host's work, and how much of it such "
            "a device hides."
        )
    return lines


def say_defect(comparison: Comparison) -> list[str]:
    """Of a known defect: whether it showed, and in how many rows."""
    if comparison.exactness != Exactness.KNOWN_DEFECT.value:
        return []
    found = next((gate for gate in comparison.gates if gate.name == SAMPLING_GATE), None)
    if found is None or found.status == "n/a":
        return ["A known defect is compared, and what rows were served with is not told here."]
    if found.status != "fail":
        return [f"A known defect is compared, and it did not show: {found.detail}."]
    return [
        f"The known defect was caught by the gate '{SAMPLING_GATE}', which holds what every row was drawn with against "
        "what its request asked for. So no claim is made about speed."
    ]


_SPEAKERS: tuple[Callable[[Comparison], list[str]], ...] = (
    say_defect,
    say_where_it_comes_from,
    say_hidden_work,
    say_tokens,
    say_acceptance,
    say_how_much_is_missing,
    say_order,
    say_label,
)


def _of_occasion(comparison: Comparison, occasion: Occasion) -> list[str]:
    """How the measurement came to its end, and what it was corrected for."""
    lines = []
    look, noun = occasion.last_look, "processes" if occasion.counts_processes else "units"
    if look is None:
        lines.append("No look was taken, so nothing may be claimed yet" + _resume(occasion))
    elif occasion.is_interrupted and not (look.is_last or look.settled):
        lines.append(f"Interrupted: this is what look {look.look} saw, at {look.units} {noun}" + _resume(occasion))
    elif look.reason == BUDGET and look.units < occasion.planned_end:
        lines.append(f"The budget was over after {look.units} of {occasion.planned_end} planned {noun}.")
    if occasion.warning:
        lines.append(f"Planned over budget: {occasion.warning}.")
    if 0 < comparison.n_units < MIN_UNITS and comparison.n_processes == 1:
        lines.append(f"Only {comparison.n_units} units: their noise is barely known, and gates that need more are n/a.")
    if occasion.family_size > 1:
        level = f"{100 * (1 - comparison.alpha):.4g}%"
        lines.append(f"Corrected for {occasion.family_size} comparisons (Holm): the interval is one of {level}.")
    for arm, defect in (occasion.injected or {}).items():
        told = ", ".join(f"{key} {value}" for key, value in defect.items())
        lines.append(f"A known defect was put into arm {arm} on purpose: {told}.")
    return lines


def _resume(occasion: Occasion) -> str:
    return "; --resume goes on." if occasion.is_interrupted else "."
