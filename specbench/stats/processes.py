"""Effects over fresh processes: start, memory layout and autotuning differ, and no period inside one shows
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specbench.errors import InputError
from specbench.stats.checks import FloatArray, finite_vector
from specbench.stats.estimate import Estimate, StandardError, estimate_units, satterthwaite_df, why_no_spread

MIN_PROCESSES = 4
"""Fewer process means give no interval between processes that is worth printing."""


@dataclass(frozen=True)
class ProcessEstimate:
    """One effect measured in one or several fresh processes.

    :param estimate: the equal-weight mean of process means; with 4 or more processes, errors within and
        between them.
    :param scope: what the interval speaks of, in words.
    :param process_means: log points, one a process.
    :param between_std_dev: of the process means, which includes what units leave in them; None for one
        process.
    """

    estimate: Estimate
    num_processes: int
    scope: str
    process_means: tuple[float, ...]
    between_std_dev: float | None

    @property
    def is_general(self) -> bool:
        """True when the interval covers new processes, not only those that ran."""
        return self.num_processes >= MIN_PROCESSES


def estimate_processes(log_ratios: Sequence[npt.ArrayLike]) -> ProcessEstimate:
    """The mean effect over processes, for an interval that is the wider of within and between them.

    :param log_ratios: one array [n_i] of log points a process.
    :raises InputError: no process, or one whose units are missing or not finite.
    """
    if not len(log_ratios):
        raise InputError("no process was measured", where="log_ratios")
    processes = [finite_vector(units, f"process {index}") for index, units in enumerate(log_ratios)]
    means = np.array([units.mean() for units in processes])
    if len(processes) == 1:
        return ProcessEstimate(estimate_units(processes[0]), 1, "this process only", (float(means[0]),), None)
    general = len(processes) >= MIN_PROCESSES
    candidates = [_error_within(processes), *([_error_between(means)] if general else [])]
    errors = tuple(found for found in candidates if isinstance(found, StandardError))
    reasons = "; ".join(reason for reason in candidates if isinstance(reason, str))
    num_units = sum(units.size for units in processes)
    estimate = Estimate(float(means.mean()), num_units, errors, None if errors else reasons)
    scope = f"{len(processes)} fresh processes" if general else f"these {len(processes)} processes only"
    return ProcessEstimate(estimate, len(processes), scope, tuple(means.tolist()), float(means.std(ddof=1)))


def _error_within(processes: Sequence[FloatArray]) -> StandardError | str:
    """Units' own noise, pooled without assuming it alike in all processes."""
    reason = next((reason for units in processes if (reason := why_no_spread(units))), None)
    if reason:
        return f"within processes: {reason}"
    variances = np.array([units.var(ddof=1) / units.size for units in processes])
    df = satterthwaite_df(variances, np.array([units.size - 1.0 for units in processes]))
    num_units = sum(units.size for units in processes)
    return StandardError(math.sqrt(variances.sum()) / len(processes), df, num_units, "within processes")


def _error_between(means: FloatArray) -> StandardError | str:
    """Spread of the process means: a t interval over processes."""
    reason = why_no_spread(means)
    if reason:
        return f"between processes: {reason}"
    error = float(means.std(ddof=1)) / math.sqrt(means.size)
    return StandardError(error, means.size - 1.0, means.size, "between processes")
