"""Checks of what could spoil the figures of a run, each with the figure it was judged by.

``fail`` means that the figures may not be used at all (the run exits INVALID); ``warn`` that they may, with a
doubt that the reader must know; ``n/a`` that it could not be seen here, or does not apply. Nothing here looks
at a clock or a machine: the evidence was written into the trial when it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from specbench.measure.labels import split_label
from specbench.measure.load import NOT_JUDGED
from specbench.measure.sampling_audit import gate_sampling
from specbench.measure.simulation_gate import gate_simulation
from specbench.measure.telemetry import step_durations_ns
from specbench.records import WINDOW, Gate, RequestRecord, TrialRecord

PASS, WARN, FAIL, NOT_APPLICABLE = "pass", "warn", "fail", "n/a"

OTHER_LOAD_LIMIT = 0.05
"""Share of all cores' time by other processes above which figures are doubtful."""
DEGENERATE_LIMIT = 0.05
"""Share of requests that end in a repetition loop above which acceptance says little."""
LOOP_TOKENS = 32
"""A tail shorter than this is no loop: lists and tables repeat, too."""
COLD_RATIO, EARLY_STEPS, LATER_STEPS = 1.25, 5, 25
CLOCK_TOLERANCE = 0.05


@dataclass(frozen=True)
class Measured:
    """Trials that count, and their requests."""

    trials: Sequence[TrialRecord]
    requests: Sequence[RequestRecord]


def judge_run(measured: Measured) -> list[Gate]:
    """Every gate of ``specbench run``, in the order of the report."""
    return [gate(measured) for gate in GATES]


def gate_completeness(measured: Measured) -> Gate:
    """Did every trial get to its end, and every request of it?"""
    cut = [trial for trial in measured.trials if trial.status != "complete"]
    sent = sum(request.finish_reason != "error" for request in measured.requests)
    done = sum(request.finish_reason in ("stop", "length", WINDOW) for request in measured.requests)
    planned = sum(trial.planned_requests for trial in measured.trials)
    counts = f"{sent} of {planned} requests were sent, {done} ended"
    if cut:
        why = {"interrupted": "by the user", "timeout": "by measure.timeout"}
        reasons = sorted({why.get(trial.status, trial.status) for trial in cut})
        return Gate("complete", WARN, f"cut {', '.join(reasons)}: {counts}")
    return Gate("complete", PASS if sent == done == planned else FAIL, counts)


def gate_requests(measured: Measured) -> Gate:
    """Did a request fail, or end before its time?"""
    failed = [request for request in measured.requests if request.finish_reason == "error"]
    capped = sum(request.finish_reason == "length" for request in measured.requests)
    full = sum(_ended_at_model_limit(request) for request in measured.requests)
    total = len(measured.requests)
    if failed:
        first = failed[0]
        return Gate("requests", FAIL, f"{len(failed)} of {total} failed; {first.request_id}: {first.error}")
    if full:
        return Gate("requests", WARN, f"{full} of {total} ended at engine.max_seq_len, before their output cap")
    return Gate("requests", PASS, f"0 of {total} failed, {capped} ended at their output cap")


def _ended_at_model_limit(request: RequestRecord) -> bool:
    short = request.max_tokens is not None and request.output_tokens < request.max_tokens
    return request.finish_reason == "length" and short


def gate_token_counts(measured: Measured) -> Gate:
    """Do the steps' counts and the requests' outputs say the same?"""
    for trial in measured.trials:
        if not trial.subject.get("capabilities", {}).get("steps"):
            return Gate("token counts", NOT_APPLICABLE, "what was measured tells no steps")
        columns = trial.steps.columns
        by_step = sum(columns["num_committed"]) + sum(columns["num_first_tokens"])
        if by_step != trial.committed_tokens:
            detail = f"trial {trial.trial}: {by_step} tokens by step, {trial.committed_tokens} by request"
            return Gate("token counts", FAIL, detail)
    total = sum(trial.committed_tokens for trial in measured.trials)
    return Gate("token counts", PASS, f"steps and requests agree on {total} tokens")


def gate_repeatability(measured: Measured) -> Gate:
    """Did equal trials commit equal tokens? Sampled ones must as well: each token's random number is a function of the
    request's seed and the position, whatever else is in the batch.
    """
    equal: dict[tuple[int, str, int, int], list[TrialRecord]] = {}
    whole = [trial for trial in measured.trials if trial.status == "complete" and trial.tokens_sha256]
    for trial in whole:
        equal.setdefault((trial.point, trial.variant, trial.segment, trial.seed), []).append(trial)
    if len(whole) == len(equal):
        return Gate("repeatable", NOT_APPLICABLE, "no trial was repeated with the same seed")
    for first, *others in equal.values():
        other = next((trial for trial in others if trial.tokens_sha256 != first.tokens_sha256), None)
        if other is not None:
            detail = f"trials {first.trial} and {other.trial} are equal but committed different tokens"
            return Gate("repeatable", FAIL, detail)
    return Gate("repeatable", PASS, f"{len(whole)} trials, equal tokens for equal seeds")


def gate_collection(measured: Measured) -> Gate:
    """Did the garbage collector run in a window?"""
    collections = sum(trial.evidence.gc_collections for trial in measured.trials)
    if collections:
        took = sum(trial.evidence.gc_ms for trial in measured.trials)
        return Gate("garbage collection", WARN, f"{collections} collections in the window took {took:.1f} ms")
    return Gate("garbage collection", PASS, "none in the window (off while measuring)")


def gate_captures(measured: Measured) -> Gate:
    """Did capture or compilation happen in a window?"""
    total = _count(measured, "captures")
    if total is None:
        return Gate("capture and compile", NOT_APPLICABLE, "steps run eagerly: there is nothing to capture")
    return Gate("capture and compile", WARN if total else PASS, f"{total} in the window")


def gate_eager_fallbacks(measured: Measured) -> Gate:
    """Did steps without prompts run eagerly because no captured step fits them?"""
    total, replays = _count(measured, "eager_not_captured"), _count(measured, "replays")
    if total is None or replays is None:
        return Gate("eager fallbacks", NOT_APPLICABLE, "no captured steps in this configuration")
    padded, with_prompts = _count(measured, "padded_steps"), _count(measured, "eager_context")
    detail = f"{total} steps; {replays} were replayed, {padded} of them padded; {with_prompts} with prompts ran eagerly"
    return Gate("eager fallbacks", WARN if total else PASS, detail)


def _count(measured: Measured, counter: str) -> int | None:
    """What captured steps counted in the windows; None where there were none."""
    counted = [trial.counters.get("graphs", {}).get("captured") for trial in measured.trials if trial.counters]
    known = [item.counts.get(counter, 0) for item in counted if item is not None]
    return sum(known) if known else None


def gate_sampling_parameters(measured: Measured) -> Gate:
    """See :mod:`specbench.measure.sampling_audit`."""
    return gate_sampling(measured.trials)


def _total(measured: Measured, key: str) -> int | None:
    """Sum of a count that subjects report of themselves; None where one of them does not know it."""
    counts = [trial.subject.get(key) for trial in measured.trials]
    known = [int(count) for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def gate_warmth(measured: Measured) -> Gate:
    """Were the first generation steps as fast as those just after, where the context is as long?"""
    worst: float | None = None
    for trial in measured.trials:
        ratio = _first_to_later(trial)
        worst = ratio if worst is None else max(worst, ratio or 0.0)
    if worst is None:
        return Gate("warm", NOT_APPLICABLE, f"fewer than {EARLY_STEPS * 2} like steps at the start")
    status = WARN if worst > COLD_RATIO else PASS
    return Gate("warm", status, f"first {EARLY_STEPS} generation steps took {worst:.2f} times the next ones")


def _first_to_later(trial: TrialRecord) -> float | None:
    """Median of the first pure generation steps over that of the next, of the first shape with enough."""
    columns = trial.steps.columns
    if len(trial.steps) == 0:
        return None
    durations = step_durations_ns(trial.steps).tolist()
    by_shape: dict[tuple[int, int], list[int]] = {}
    for i in range(1, len(durations)):  # the first one includes the ramp
        if columns["num_context"][i] == 0 == columns["num_context"][i - 1]:
            by_shape.setdefault((columns["num_generation"][i], columns["draft_len"][i]), []).append(durations[i])
    for values in by_shape.values():
        if len(values) >= EARLY_STEPS * 2:
            return median(values[:EARLY_STEPS]) / max(median(values[EARLY_STEPS : EARLY_STEPS + LATER_STEPS]), 1)
    return None


def gate_other_load(measured: Measured) -> Gate:
    """Did other processes use the machine meanwhile?"""
    shares = [t.evidence.other_cpu_fraction for t in measured.trials if t.evidence.other_cpu_fraction is not None]
    if not shares:
        return Gate("other load", NOT_APPLICABLE, "CPU times cannot be read here")
    worst = max(shares)
    loads = [t.evidence.load_average_start for t in measured.trials if t.evidence.load_average_start is not None]
    before = f"; load average before: {max(loads):.1f}" if loads else ""
    detail = f"other processes used {worst * 100:.1f}% of all cores' time{before}"
    return Gate("other load", WARN if worst > OTHER_LOAD_LIMIT else PASS, detail)


def gate_clocks(measured: Measured) -> Gate:
    """Was the machine throttled, or free to change its clocks?"""
    evidence = [trial.evidence for trial in measured.trials]
    throttled = [item.cpu_throttle_events for item in evidence if item.cpu_throttle_events is not None]
    gpus = [item.gpu for item in evidence if item.gpu]
    governor = next((item.governor for item in evidence if item.governor), None)
    reasons = 0
    for gpu in gpus:
        reasons |= gpu.get("throttle_reasons") or 0
    if any(throttled) or reasons:
        return Gate("clocks", WARN, f"throttled: {sum(throttled)} CPU events, GPU reasons 0x{reasons:x}")
    if governor is None and not throttled and not gpus:
        return Gate("clocks", NOT_APPLICABLE, "governor and throttling cannot be read here")
    parts = [f"governor {governor or 'unknown'}"]
    parts += [f"{sum(throttled)} throttle events"] if throttled else []
    parts += [f"GPU {gpus[0].get('sm_mhz_min')} to {gpus[0].get('sm_mhz_max')} MHz"] if gpus else []
    steady = governor in (None, "performance")
    return Gate("clocks", PASS if steady else WARN, ", ".join(parts))


def gate_degeneration(measured: Measured) -> Gate:
    """Did outputs end in repetition loops, which drafters guess for free?"""
    labels = {part for trial in measured.trials for part in split_label(trial.label)} & set(NOT_JUDGED.values())
    if labels:
        return Gate("repetition loops", NOT_APPLICABLE, f"content is not judged under {labels.pop()}")
    if not measured.requests or any(not t.subject.get("capabilities", {}).get("token_ids") for t in measured.trials):
        return Gate("repetition loops", NOT_APPLICABLE, "no token ids to look at")
    loops = [r for r in measured.requests if r.repeated_tail_tokens >= max(LOOP_TOKENS, r.output_tokens // 4)]
    share = len(loops) / len(measured.requests)
    detail = f"{len(loops)} of {len(measured.requests)} outputs end in a loop"
    return Gate("repetition loops", WARN if share > DEGENERATE_LIMIT else PASS, detail)


def gate_preemptions(measured: Measured) -> Gate:
    """Was a request thrown out of the KV cache and computed again?"""
    count = sum(request.num_preemptions for request in measured.requests)
    if count:
        return Gate("preemptions", WARN, f"{count}: the KV cache is short, so prompts were computed again")
    return Gate("preemptions", PASS, "0")


def gate_profiler(measured: Measured) -> Gate:
    """Was a profiler told about every range meanwhile?"""
    used = sorted({str(trial.subject.get("profile", "off")) for trial in measured.trials} - {"off"})
    if used:
        return Gate("profiler", WARN, f"{', '.join(used)} was on: figures include what it costs")
    return Gate("profiler", PASS, "off")


def gate_prefix_cache(measured: Measured) -> Gate:
    """Were prompts found in a prefix cache?"""
    total = _total(measured, "prefix_cache_hits")
    if total is None:
        return Gate("prefix cache", NOT_APPLICABLE, "there is none")
    return Gate("prefix cache", WARN if total else PASS, f"{total} tokens were found in it")


def gate_content(measured: Measured) -> Gate:
    """Is the content such that acceptance means something?"""
    labels = sorted({trial.label for trial in measured.trials})
    notes = sorted({str(t.subject["content_note"]) for t in measured.trials if t.subject.get("content_note")})
    detail = "; ".join([", ".join(labels) or "unknown", *notes])
    return Gate("content", PASS if labels == ["natural"] else WARN, detail)


def gate_declared_times(measured: Measured) -> Gate:
    """See :mod:`specbench.measure.simulation_gate`."""
    return gate_simulation(measured.trials)


GATES: tuple[Callable[[Measured], Gate], ...] = (
    gate_completeness,
    gate_requests,
    gate_token_counts,
    gate_repeatability,
    gate_sampling_parameters,
    gate_content,
    gate_degeneration,
    gate_warmth,
    gate_collection,
    gate_captures,
    gate_eager_fallbacks,
    gate_preemptions,
    gate_prefix_cache,
    gate_declared_times,
    gate_profiler,
    gate_other_load,
    gate_clocks,
)
