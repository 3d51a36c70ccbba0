"""What the figures of a report mean, printed with them."""

from __future__ import annotations

DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("total", "committed tokens / wall time, from the first admission to the last commit"),
    (
        "full batch",
        "the same over steps in which every slot holds a live request; left out are the first fill, until all of them "
        "generate, and the tail",
    ),
    ("per user", "full batch / concurrency"),
    ("TTFT", "from the moment a request may be admitted to its first token"),
    ("TPOT", "(E2E - TTFT) / (output tokens - 1)"),
    ("ITL", "gap between chunks; a step may commit several tokens, and the gap is not divided by them"),
    ("E2E", "from the moment a request may be admitted to its last token"),
    (
        "acceptance length",
        "tokens a request and target step, bonus token included; each step weighs the same, and one in which a request "
        "ends counts with the tokens up to there",
    ),
    ("conditional", "rate at a draft position where every position before it was accepted"),
    (
        "joint",
        "rate at which a position and every one before it were accepted, requests that had ended left out, so that 1 + "
        "the sum of them may be above the acceptance length",
    ),
    ("step", "wall time / engine steps, prefill included = device + host exposed + other idle"),
    ("device", "the device executes something (on the CPU: the worker, dispatch included)"),
    ("host exposed", "the host prepares while the device idles; host total is all of it, hidden or not"),
    ("other idle", "the rest: neither computes (waking up, the load generator)"),
)
"""Of the figures of a point."""

_OF_WIDE_TABLE = ("total", "per user", "TTFT", "TPOT", "acceptance length", "step", "device", "host exposed")
WIDE_DEFINITIONS = tuple(
    ("tok/s" if name == "total" else name, text) for name, text in DEFINITIONS if name in _OF_WIDE_TABLE
)
"""Of the table that has one row a point."""

COMPARISON_DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "speedup",
        "exp(mean d) - 1, d the log ratio of a unit: the baseline's time over the candidate's on equal tokens, and of "
        "tokens per second where tokens differ; positive: the candidate is faster",
    ),
    (
        "unit",
        "what is randomised: four periods (ABBA or BAAB) over both passes of a mirrored segment, or four whole runs",
    ),
    (
        "interval",
        "paired t on d at the bound of the look that decided; over four or more processes the wider of within and "
        "between them",
    ),
    ("EQUIVALENT", "both one-sided tests pass: the effect is shown to lie inside the margin"),
    ("INCONCLUSIVE", "neither a difference nor equivalence was shown, which says nothing about there being none"),
    ("could see", "the smallest true effect that a comparison like this finds four times in five"),
    ("log points", "100 ln(ratio), about per cent; parts add up to the whole; positive: the candidate is better"),
    ("share", "the range's part of the baseline's step: an upper limit on what removing it could gain"),
)
HOLM = ("p Holm", "p of no difference, corrected (Holm) for all comparisons of this report together")
POOLED = (
    "pooled",
    "the mean of the points' log ratios, each point weighing the same: first for the points measured, then, wider, for "
    "points like them",
)
