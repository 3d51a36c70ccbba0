"""Did a simulated device keep to the times that it declares?"""

from __future__ import annotations

from collections.abc import Sequence

from specbench.records import Gate, TrialRecord

NAME = "declared times"
OVERRUN_LIMIT = 0.01
"""Share of the declared time by which the device may have ended late."""


def gate_simulation(trials: Sequence[TrialRecord]) -> Gate:
    """Launches end late where keeping their books takes longer than what is declared for them.

    Counts are those of the device since it was opened, warm-up included.
    """
    found = [counted for trial in trials if "overruns" in (counted := trial.subject.get("device_counters") or {})]
    if not found:
        return Gate(NAME, "n/a", "the device is no simulation")
    most = max(found, key=lambda counted: counted["launches"])
    declared_us, overrun_us = most["declared_us"], most["overrun_us"]
    share = overrun_us / declared_us if declared_us else float(overrun_us > 0)
    detail = (
        f"{most['overruns']} of {most['launches']} launches ended later than declared, "
        f"by {share * 100:.2g}% of the declared time in all"
    )
    if share > OVERRUN_LIMIT:
        detail += ": declared times are too short for what the device does for real here, and it looks slower than that"
        return Gate(NAME, "warn", detail)
    return Gate(NAME, "pass", detail)
