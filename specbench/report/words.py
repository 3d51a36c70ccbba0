"""How figures of comparisons are put into words: signs, digits, p values, points, verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from specbench.records import INVALID, Comparison

NOT_COMPUTED = "not computed"
_LEAST_DECIMALS, _MOST_DECIMALS = 1, 4
_TONES = {
    "FASTER": "good",
    "SLOWER": "bad",
    "EQUIVALENT": "calm",
    "FASTER BUT NEGLIGIBLE": "calm",
    "SLOWER BUT NEGLIGIBLE": "calm",
    "INCONCLUSIVE": "warn",
    INVALID: "bad",
}
_SMALL_P = 1e-4
_SHORTHANDS = {
    "model.source": "model",
    "drafter.name": "drafter",
    "acceptance.mode": "acceptance",
    "workload.kind": "workload",
}


def tone_of(verdict: str) -> str:
    """Colour of a verdict."""
    return _TONES.get(verdict, "")


def effect_decimals(*bounds: float | None) -> int:
    """Decimals that leave two figures of an interval's half width, and no end other than 0 that reads as 0.

    With one bound, about three figures of it.
    """
    known = [bound for bound in bounds if bound is not None and math.isfinite(bound)]
    size = (max(known) - min(known)) / 2 if len(known) > 1 else abs(known[0]) / 10 if known else 0.0
    decimals = 1 - math.floor(math.log10(size)) if size > 0 else 2
    decimals = min(max(decimals, _LEAST_DECIMALS), _MOST_DECIMALS)
    while decimals < _MOST_DECIMALS and any(bound and round(bound, decimals) == 0 for bound in known):
        decimals += 1
    return decimals


def percent(value: float | None, decimals: int | None = None) -> str:
    """``+1.23%``."""
    if value is None:
        return NOT_COMPUTED
    return f"{value:+,.{effect_decimals(value) if decimals is None else decimals}f}%"


def interval_words(low: float | None, high: float | None, decimals: int) -> str:
    """``+0.95% to +1.52%``."""
    if low is None or high is None:
        return NOT_COMPUTED
    return f"{percent(low, decimals)} to {percent(high, decimals)}"


def level_words(comparison: Comparison) -> str:
    """``95%``: of the comparison's own intervals, after the correction for others that were made beside it."""
    corrected = not math.isclose(comparison.alpha, 1 - comparison.confidence)
    return f"{100 * (1 - comparison.alpha):.4g}%" if corrected else confidence_words(comparison.confidence)


def confidence_words(confidence: float) -> str:
    """``95%``."""
    return f"{confidence * 100:g}%"


def p_words(value: float | None) -> str:
    """``0.012``, ``< 0.0001``."""
    if value is None:
        return NOT_COMPUTED
    return f"{value:.3g}" if value >= _SMALL_P else f"< {_SMALL_P:.4f}"


def plural(count: int, noun: str) -> str:
    """``1 request``, ``1,024 requests``; ``process`` gets its own plural."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{ending}"


def value_words(value: Any) -> str:
    """A scenario's value as a person would write it in YAML, on one line."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def setting_words(value: Any) -> str:
    """A value within a sentence: numbers as every other figure is written (``2,048``)."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_number else value_words(value)


def draft_len_words(draft_len: Any, by_batch_size: Mapping[Any, int] | None) -> str:
    """``K = 4``; where K follows the batch, ``K = 4 up to batch 2, 1 up to batch 8``; empty for none.

    :param by_batch_size: ``drafter.runtime_draft_len``, largest batch size -> K.
    """
    shown = by_batch_words(by_batch_size or {}) or draft_len
    return f"K = {shown}" if shown else ""


def tree_words(tree: Mapping[str, Any]) -> str:
    """``a tree of 12 nodes (top_k 4, depth 4)``; empty for none.

    :param tree: ``drafter.tree``: ``{top_k, depth, num_nodes}``.
    """
    return f"a tree of {tree_size_words(tree)}" if tree else ""


def tree_size_words(tree: Mapping[str, Any]) -> str:
    """``12 nodes (top_k 4, depth 4)``."""
    return f"{tree.get('num_nodes')} nodes (top_k {tree.get('top_k')}, depth {tree.get('depth')})"


def lookup_words(min_ngram: int | None, max_ngram: int | None) -> str:
    """``looks up 2 to 5 tokens``; empty where nothing is looked up."""
    if min_ngram is None or max_ngram is None:
        return ""
    return f"looks up {min_ngram} to {max_ngram} tokens" if min_ngram < max_ngram else f"looks up {max_ngram} tokens"


def by_batch_words(by_batch_size: Mapping[Any, int]) -> str:
    """``4 up to batch 2, 1 up to batch 8``: K by the largest batch size that has it."""
    sizes = sorted((int(size), draft_len) for size, draft_len in by_batch_size.items())
    return ", ".join(f"{draft_len} up to batch {size}" for size, draft_len in sizes)


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Full keys with the shortest ends that still tell them apart: ``workload.concurrency`` -> ``concurrency``.

    What a section's name alone stands for goes by that: ``drafter.name`` -> ``drafter``.
    """
    names = list(dict.fromkeys(keys))
    ends = [_SHORTHANDS.get(name, name.rpartition(".")[2]) for name in names]
    return {name: end if ends.count(end) == 1 else name for name, end in zip(names, ends, strict=True)}


def point_words(point: Mapping[str, Any]) -> str:
    """Sweep coordinates: ``concurrency 4, draft_len 5``."""
    short = short_keys(point)
    return ", ".join(f"{short[key]} {setting_words(value)}" for key, value in point.items())


def duration_words(seconds: float) -> str:
    """``1 ms``, ``42.0 s``, ``3.5 min``, ``2.5 hours``, ``3.1 days``."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for size, name, most in ((1, "s", 120), (60, "min", 120), (3600, "hours", 48)):
        if seconds / size < most:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds / 86400:,.1f} days"
