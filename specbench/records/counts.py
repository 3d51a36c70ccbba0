"""What the variants of a toggle counted of their own work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VariantCounts:
    """What one variant counted, such as copies and bytes, while it stood at its choice point.

    :param steps: engine steps that it was counted over; 0: not known.
    :param counts: counter -> total over those steps. What each counter means is the variant's to say.
    """

    steps: int
    counts: dict[str, int]

    def per_step(self, name: str) -> float | None:
        """Mean a step; None where steps or the counter are not known."""
        value = self.counts.get(name)
        return None if value is None or not self.steps else value / self.steps


ToggleCounts = dict[str, dict[str, VariantCounts]]
"""Toggle -> variant -> what it counted; toggles whose variants count nothing are left out."""


@dataclass(frozen=True)
class SamplingValues:
    """Of a row that draws its token, top_k 2147483647 and top_p 1.0 where there is none; all 0: it takes the argmax."""

    temperature: float
    top_k: int
    top_p: float


@dataclass(frozen=True)
class SamplingAudit:
    """Rows of finished steps that asked for one thing of the sampler and were served with one.

    :param variants: toggle -> the variant that stood.
    :param rows: logits rows, K + 1 a generation request and step.
    """

    variants: dict[str, str]
    asked: SamplingValues
    effective: SamplingValues
    rows: int
