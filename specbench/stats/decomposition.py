"""Why an arm is faster, in log points that add up.

``d ln throughput = d ln(tokens per step) - d ln(time per step)``. The time part goes to components by their
share of the change in milliseconds. A component's part is written as ``-(change in ms) / L``, L the
logarithmic mean of both step times, which is that same share and stays finite when components change and
their sum does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specbench.errors import InputError
from specbench.stats.checks import FloatArray, finite_vector, positive_vector
from specbench.stats.estimate import Estimate, estimate_units

TOKENS_PER_STEP = "tokens_per_step"


@dataclass(frozen=True, eq=False)
class StepCosts:
    """One arm, one entry a unit.

    :param tokens_per_step: [n] committed tokens a step.
    :param components_ms: name -> [n] milliseconds a step; they sum to the time of the step. One of them may
        be negative (a remainder), their sum may not.
    """

    tokens_per_step: npt.ArrayLike
    components_ms: Mapping[str, npt.ArrayLike]


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Parts of the gain in throughput; positive means that the candidate is better.

    :param parts: ``tokens_per_step`` and every component -> [n] log points, one a unit.
    """

    parts: dict[str, FloatArray]

    @property
    def total(self) -> FloatArray:
        """[n] the log ratio of throughputs, which the parts sum to."""
        whole: FloatArray = np.stack(list(self.parts.values())).sum(axis=0)
        return whole

    def means(self) -> dict[str, float]:
        """Each part averaged over units; they sum to the mean log ratio."""
        return {name: float(values.mean()) for name, values in self.parts.items()}

    def estimates(self) -> dict[str, Estimate]:
        """Each part with its paired t error."""
        return {name: estimate_units(values) for name, values in self.parts.items()}


def decompose(baseline: StepCosts, candidate: StepCosts) -> Decomposition:
    """Split the log ratio of throughputs, unit by unit.

    :raises InputError: components or lengths of the arms differ, a value is not finite, a step takes no time
        or commits no token, or a component is called ``tokens_per_step``.
    """
    names = list(baseline.components_ms)
    if not names or set(names) != set(candidate.components_ms) or TOKENS_PER_STEP in names:
        raise InputError(
            f"components of the arms must be the same, not {names} and {list(candidate.components_ms)}",
            hint="leave out what one arm cannot tell, and give the rest as one component",
        )
    before, after = _table(baseline, names), _table(candidate, names)
    tokens_before = positive_vector(baseline.tokens_per_step, "baseline tokens_per_step")
    tokens_after = positive_vector(candidate.tokens_per_step, "candidate tokens_per_step")
    if not before.shape[1] == after.shape[1] == tokens_before.size == tokens_after.size:
        raise InputError("tokens and components of both arms must have one entry a unit", where="components_ms")
    per_ms = 1 / _logarithmic_mean(before.sum(axis=0), after.sum(axis=0))
    parts = {TOKENS_PER_STEP: np.log(tokens_after / tokens_before)}
    parts |= {name: -(after[row] - before[row]) * per_ms for row, name in enumerate(names)}
    return Decomposition(parts)


def _table(costs: StepCosts, names: list[str]) -> FloatArray:
    """[components, n] milliseconds, with a step time above 0 in every unit."""
    rows = [finite_vector(costs.components_ms[name], name) for name in names]
    if len({row.size for row in rows}) > 1:
        raise InputError(f"components have {[row.size for row in rows]} units", where="components_ms")
    table = np.stack(rows)
    positive_vector(table.sum(axis=0), "step_ms")
    return table


def _logarithmic_mean(first: FloatArray, second: FloatArray) -> FloatArray:
    """``(b - a) / (ln b - ln a)``, and a where both are the same."""
    growth = (second - first) / first
    log_growth = np.log1p(growth)
    same = log_growth == 0
    ratio = np.where(same, 1.0, growth / np.where(same, 1.0, log_growth))
    result: FloatArray = first * ratio
    return result
