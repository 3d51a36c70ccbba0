"""Were requests served with the sampling parameters that they asked for?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from specbench.engine.optimizations.defects import known_defects
from specbench.engine.sampling.params import TOP_K_OFF
from specbench.records import Gate, SamplingAudit, SamplingValues, TrialRecord

NAME = "sampling parameters"
_CAPTURE_PARAMS = "capture_params"
_SHOWN = 3


def gate_sampling(trials: Sequence[TrialRecord]) -> Gate:
    """Every row of every step, those of both arms and between timed periods included.

    Beside what rows were served with, it looks at the captured steps of those arms: one that should draw tokens and
    recorded no draw, or a copy that still has an override, fails although nobody may have asked it for anything yet.
    """
    known = [trial.sampling_audit for trial in trials if trial.sampling_audit is not None]
    if not known:
        return Gate(NAME, "n/a", "what was measured does not tell what it served requests with")
    entries = [entry for found in known for entry in found]
    total = sum(entry.rows for entry in entries)
    wrong = [entry for entry in entries if entry.asked != entry.effective]
    faults = _capture_faults(trials, entries)
    if wrong:
        rows = sum(entry.rows for entry in wrong)
        detail = f"{rows} of {total} rows were served otherwise than they asked for: {_describe_wrong(wrong)}"
        return Gate(NAME, "fail", "; ".join([detail, *faults]))
    if faults:
        return Gate(NAME, "fail", "; ".join(faults))
    asked = Counter[SamplingValues]()
    for entry in entries:
        asked[entry.asked] += entry.rows
    names = [describe_values(values) for values, _ in asked.most_common(_SHOWN)]
    more = f" and {len(asked) - _SHOWN} other kinds" if len(asked) > _SHOWN else ""
    return Gate(NAME, "pass", f"{total} rows were served as they asked for ({'; '.join(names)}{more})")


def describe_values(values: SamplingValues) -> str:
    """In words, as people set them."""
    if not values.top_k:
        return "greedy"
    parts = [f"temperature {values.temperature:.4g}"]
    parts += [f"top_k {values.top_k}"] if values.top_k != TOP_K_OFF else []
    parts += [f"top_p {values.top_p:.4g}"] if values.top_p < 1 else []
    return ", ".join(parts)


def _describe_wrong(entries: Sequence[SamplingAudit]) -> str:
    """The commonest faults, each with the variant it happened under."""
    counted = Counter[str]()
    for entry in entries:
        asked, effective = describe_values(entry.asked), describe_values(entry.effective)
        got = "no draw at all, the argmax" if effective == "greedy" else effective
        counted[f"{_describe_variant(entry.variants)}: asked for {asked}, served {got}"] += entry.rows
    shown = [f"{text} ({rows} rows)" for text, rows in counted.most_common(_SHOWN)]
    return "; ".join(shown)


def _describe_variant(variants: dict[str, str]) -> str:
    defects = known_defects(variants)
    if defects:
        return f"{', '.join(defects)}, a known defect"
    return ", ".join(f"{toggle}={name}" for toggle, name in variants.items())


def _capture_faults(trials: Sequence[TrialRecord], entries: Sequence[SamplingAudit]) -> list[str]:
    """Of the captured steps that served, by variant of ``capture_params``."""
    served = {entry.variants.get(_CAPTURE_PARAMS) for entry in entries if entry.variants.get("graphs") == "captured"}
    captured: dict[str, dict[str, Any]] = {}
    for trial in trials:
        captured |= (trial.subject.get("captured_steps") or {}).get("sets") or {}
    faults = []
    for variant in sorted({variant for variant in served if variant} & set(captured)):
        found = captured[variant]
        if found["advanced_without_draws"]:
            counts = f"{found['advanced_without_draws']} of {found['advanced_steps']}"
            faults.append(f"{counts} captured steps that should draw tokens recorded the argmax ({variant})")
        if found["copies_with_override"]:
            faults.append(f"{found['copies_with_override']} captured steps still have the override ({variant})")
    return faults
