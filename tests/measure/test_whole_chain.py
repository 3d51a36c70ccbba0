"""From the question to the verdict, through session, files and analysis, on a machine whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from whole_chain import (
    DIFFERENT,
    NO_MARGIN,
    Machine,
    ask,
    compare,
    conclude,
    covers,
    doubts,
    gate,
    go_on,
    labels_swapped,
    read_lines,
    reseed,
    share,
)

from specbench.measure.looks_file import read_looks
from specbench.records import Comparison

DESIGNS = ["mirrored", "runs"]
ONE_PERCENT = math.log(1.01)
STEP_US = 1350.0
"""A step of the machine without noise."""
TURNED = {
    "FASTER": "SLOWER",
    "SLOWER": "FASTER",
    "FASTER BUT NEGLIGIBLE": "SLOWER BUT NEGLIGIBLE",
    "SLOWER BUT NEGLIGIBLE": "FASTER BUT NEGLIGIBLE",
}
"""Verdicts that exchanging the arms turns; it leaves the others as they are."""


def design_of(name: str) -> str:
    return f"measure.design={name}"


# Equal arms


def compare_equal_arms(folder: Path, design: str, cases: int, **machine: Any) -> list[Comparison]:
    question = ask(folder, design_of(design), NO_MARGIN, "measure.looks=5")
    return [compare(reseed(question, seed), folder / str(seed), Machine(seed=seed, **machine)) for seed in range(cases)]


@pytest.mark.parametrize("design", DESIGNS)
def test_equal_arms_in_brief(tmp_path: Path, design: str) -> None:
    found = compare_equal_arms(tmp_path, design, 3)
    assert share(found, lambda c: c.verdict in DIFFERENT, f"type I, {design}").low <= 0.05
    assert all(c.tokens_identical and c.n_units == 10 and not c.reasons for c in found if c.verdict not in DIFFERENT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "noise"),
    [(200, {}), (100, {"spikes": 0.005}), (100, {"growth": 0.02})],
    ids=["quiet", "spikes", "drift"],
)
@pytest.mark.parametrize("design", DESIGNS)
def test_equal_arms_closely(tmp_path: Path, design: str, cases: int, noise: dict[str, Any]) -> None:
    """Five looks at each comparison: claims are as rare as they are said to be."""
    found = compare_equal_arms(tmp_path, design, cases, **noise)
    name = f"{design}, {noise or 'quiet'}"
    assert share(found, lambda c: c.verdict in DIFFERENT, f"type I, {name}").low <= 0.05
    assert share(found, lambda c: covers(c, 0.0), f"coverage of 0, {name}").high >= 0.95
    assert all(not c.reasons for c in found)


# A true effect


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(("gain", "verdict"), [(ONE_PERCENT, "FASTER"), (-ONE_PERCENT, "SLOWER")])
def test_one_percent_is_found_and_covered(tmp_path: Path, design: str, gain: float, verdict: str) -> None:
    quiet = {"step_noise": 0.002, "trial_noise": 0.002}
    found = compare(ask(tmp_path, design_of(design)), tmp_path / "out", Machine(gain=gain, **quiet))
    assert found.verdict == verdict
    assert covers(found, 100 * math.expm1(gain))
    assert found.tokens_identical is True
    assert found.n_units <= 10
    # Of four units one is soon further out than the others.
    assert not doubts(found) - {"content", "outliers"}


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_one_percent_is_covered_as_often_as_promised(tmp_path: Path, design: str) -> None:
    found = compare_equal_arms(tmp_path, design, 100, gain=ONE_PERCENT)
    assert share(found, lambda c: covers(c, 1.0), f"coverage of 1%, {design}").high >= 0.93
    assert not any(c.verdict == "SLOWER" for c in found)


@pytest.mark.parametrize("design", DESIGNS)
def test_without_noise_the_figure_is_exact(tmp_path: Path, design: str) -> None:
    """Also that no guard step, switch or pause is in it. Without a spread there is no interval."""
    question = ask(tmp_path, design_of(design))
    found = compare(question, tmp_path / "out", Machine(gain=ONE_PERCENT, step_noise=0.0, trial_noise=0.0))
    assert found.speedup_pct == pytest.approx(1.0, abs=1e-4)  # steps are whole nanoseconds
    assert found.decomposition["tokens_per_step"] == 0
    assert sum(found.decomposition.values()) == pytest.approx(ONE_PERCENT, abs=1e-6)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(("gain", "noise"), [(0.004, 0.01), (0.03, 0.002), (0.004, 0.0005)])
def test_swapped_labels_flip_the_sign_exactly(tmp_path: Path, design: str, gain: float, noise: float) -> None:
    """The machine does the very same thing twice; only the names of the arms differ."""
    quiet = {"step_noise": noise, "trial_noise": noise / 2}
    machines = [Machine(gain=gain, **quiet), Machine(gain=gain, **quiet)]
    first = compare(ask(tmp_path, design_of(design)), tmp_path / "one", machines[0])
    with labels_swapped():
        question = ask(tmp_path, design_of(design), arms=("on", "off"))
        second = compare(question, tmp_path / "two", machines[1])
    assert machines[0].clock.ns == machines[1].clock.ns
    ours, theirs = ([math.log1p(unit.d_pct / 100) for unit in c.units] for c in (first, second))
    assert ours == pytest.approx([-value for value in theirs], rel=1e-9)
    assert first.speedup_pct is not None
    assert second.speedup_pct is not None
    assert math.log1p(first.speedup_pct / 100) == pytest.approx(-math.log1p(second.speedup_pct / 100), rel=1e-9)
    assert second.verdict == TURNED.get(first.verdict, first.verdict)
    other = {"A": "B", "B": "A"}
    assert [unit.first_arm for unit in second.units] == [other[unit.first_arm] for unit in first.units]


# Known defects


def find_defect(folder: Path, design: str, defect: Mapping[str, Any], arm: str = "B", **machine: Any) -> Comparison:
    question = ask(folder, design_of(design), "measure.max_units=16", injected={arm: defect})
    quiet = {"step_noise": 0.003, "trial_noise": 0.002}
    return compare(question, folder / f"{design}-{arm}", Machine(**{**quiet, **machine}))


@pytest.mark.parametrize(("kind", "design"), [("delay", "mirrored"), ("hidden_sleep", "mirrored"), ("delay", "runs")])
def test_waiting_in_an_arm_is_found(tmp_path: Path, design: str, kind: str) -> None:
    defect = {"kind": kind, "us": 0.02 * STEP_US}
    slower, faster = (find_defect(tmp_path, design, defect, arm) for arm in "BA")
    assert (slower.verdict, faster.verdict) == ("SLOWER", "FASTER")
    assert covers(slower, 100 / 1.02 - 100)
    assert covers(faster, 2.0)
    assert any("on purpose" in line or "injected" in line or "defect" in line for line in slower.in_words)


@pytest.mark.parametrize("design", DESIGNS)
def test_load_in_one_arm_is_found(tmp_path: Path, design: str) -> None:
    found = find_defect(tmp_path, design, {"kind": "load", "threads": 1}, load_slows=0.03)
    assert found.verdict == "SLOWER"
    assert covers(found, 100 * math.expm1(-0.03))


@pytest.mark.parametrize("design", DESIGNS)
def test_a_drift_in_one_arm_is_slower_or_doubted(tmp_path: Path, design: str) -> None:
    found = find_defect(tmp_path, design, {"kind": "drift", "us_per_step": 0.15})
    print(found.verdict, doubts(found))
    assert found.verdict in ("SLOWER", "SLOWER BUT NEGLIGIBLE", "INCONCLUSIVE")
    assert found.verdict == "SLOWER" or doubts(found) & {"warm", "halves", "lag-1"}


@pytest.mark.parametrize("design", DESIGNS)
def test_a_drift_that_only_a_long_comparison_shows_is_doubted(tmp_path: Path, design: str) -> None:
    question = ask(tmp_path, design_of(design), "measure.max_units=24", "measure.looks=1",
                   injected={"B": {"kind": "drift", "us_per_step": 0.15}})  # fmt: skip
    found = compare(question, tmp_path / "out", Machine(step_noise=0.003, trial_noise=0.002))
    assert found.verdict == "SLOWER"
    assert {"warm", "halves"} <= doubts(found)


@pytest.mark.parametrize("design", DESIGNS)
def test_spikes_in_one_arm_are_slower_or_doubted(tmp_path: Path, design: str) -> None:
    found = find_defect(tmp_path, design, {"kind": "spike", "every": 37, "ms": 10})
    print(found.verdict, found.speedup_pct, gate(found, "outliers"))
    assert found.verdict not in ("EQUIVALENT", "FASTER", "FASTER BUT NEGLIGIBLE")
    assert found.verdict == "SLOWER" or "outliers" in doubts(found)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("arm", ["A", "B"])
def test_a_changed_token_is_invalid(tmp_path: Path, design: str, arm: str) -> None:
    found = find_defect(tmp_path, design, {"kind": "token"}, arm)
    assert found.verdict == "INVALID"
    assert any("tokens differ" in reason for reason in found.reasons)
    assert found.tokens_identical is False
    where = found.first_divergence
    assert where is not None
    changed = where.candidate_token_id if arm == "B" else where.baseline_token_id
    kept = where.baseline_token_id if arm == "B" else where.candidate_token_id
    assert changed == (kept - 1 if kept else 1)  # what the defect makes of it
    assert where.request_id


@pytest.mark.parametrize("design", DESIGNS)
def test_a_machine_that_slows_down_misleads_nobody(tmp_path: Path, design: str) -> None:
    """By 2% a trial, smoothly: both arms meet it alike. Twenty times the effect that is left would not be seen."""
    question = ask(tmp_path, design_of(design), NO_MARGIN)
    alone = compare(question, tmp_path / "alone", Machine(growth=0.02, step_noise=0.0, trial_noise=0.0))
    assert alone.speedup_pct == pytest.approx(0.0, abs=0.03)
    noisy = compare(question, tmp_path / "noisy", Machine(growth=0.02, trial_noise=0.0))
    assert noisy.verdict not in DIFFERENT
    assert covers(noisy, 0.0)
    assert not doubts(noisy) & {"warm", "halves"}


# Time


def test_time_over_before_the_plan_is_a_last_look(tmp_path: Path) -> None:
    question = ask(tmp_path, "measure.max_units=null", "measure.budget=2s", NO_MARGIN)
    machine = Machine(slowdown=(16, 6.0))
    found = compare(question, tmp_path / "out", machine)
    looks = read_looks(tmp_path / "out")
    assert 16 <= found.n_units < found.planned_units
    assert (looks[-1].is_last, looks[-1].reason, looks[-1].units) == (True, "budget", found.n_units)
    assert [look.reason for look in looks[:-1]] == ["planned"] * (len(looks) - 1)
    assert 2.0 < machine.clock.ns / 1e9 < 1.15 * 2.0 + 0.6  # one block beyond it
    assert len(read_lines(tmp_path / "out", "trials.jsonl")) == found.n_units  # two trials, two units a block
    assert found.ci_low_pct is not None
    assert found.ci_low_pct < 0 < found.ci_high_pct  # type: ignore[operator]
    assert any("budget" in line for line in found.in_words)
    assert go_on(tmp_path / "out", Machine()) == "complete"  # all alpha is spent: more units would say no more
    assert conclude(tmp_path / "out").comparisons == [found]


@pytest.mark.parametrize(("preparing_s", "design"), [(0.0, "mirrored"), (0.01, "mirrored"), (0.01, "runs")])
def test_a_plan_fits_into_its_budget(tmp_path: Path, design: str, preparing_s: float) -> None:
    """Also where more time passes around the trials than in them."""
    settings = ["measure.max_units=null", "measure.segment_requests=null", "measure.budget=1s", NO_MARGIN]
    settings += ["measure.looks=1"]
    machine = Machine(preparing_s=preparing_s)
    found = compare(ask(tmp_path, design_of(design), *settings), tmp_path / "out", machine)
    print(found.n_units, found.planned_units, machine.clock.ns / 1e9)
    assert found.n_units == found.planned_units
    assert 0.7 < machine.clock.ns / 1e9 < 1.15


def test_an_early_verdict_saves_what_is_left(tmp_path: Path) -> None:
    found = compare(ask(tmp_path, "measure.max_units=20"), tmp_path / "out", Machine(gain=0.1))
    last = read_looks(tmp_path / "out")[-1]
    assert (found.verdict, last.settled, last.is_last, last.reason) == ("FASTER", True, False, "planned")
    assert found.n_units == last.units < 12
    assert len(read_lines(tmp_path / "out", "trials.jsonl")) == last.units


def test_any_time_looks_after_every_block(tmp_path: Path) -> None:
    found = compare(ask(tmp_path, "measure.anytime=true"), tmp_path / "out", Machine(gain=0.03))
    looks = read_looks(tmp_path / "out")
    assert [look.units for look in looks] == list(range(2, found.n_units + 1, 2))
    assert found.verdict == "FASTER"
    assert covers(found, 100 * math.expm1(0.03))


# Processes


def test_the_interval_is_the_wider_of_within_and_between_processes(tmp_path: Path) -> None:
    gains = [0.010, -0.012, 0.008, -0.004]
    quiet: dict[str, Any] = {"step_noise": 0.002, "trial_noise": 0.001}
    settings = ["measure.max_units=16", "measure.looks=1"]
    machine = Machine(process_gains=gains, **quiet)
    found = compare(ask(tmp_path, "measure.processes=4", *settings), tmp_path / "out", machine)
    assert (found.scope, found.n_processes, found.n_units) == ("4 fresh processes", 4, 16)
    d = np.log1p(np.array([unit.d_pct for unit in found.units]) / 100).reshape(4, 4)
    assert [unit.process for unit in found.units] == [process for process in range(4) for _ in range(4)]
    assert d.mean(axis=1) == pytest.approx(gains, abs=0.004)
    half = stats.t.ppf(0.975, 3) * d.mean(axis=1).std(ddof=1) / 2
    assert found.ci_low_pct == pytest.approx(100 * math.expm1(d.mean() - half))
    assert found.ci_high_pct == pytest.approx(100 * math.expm1(d.mean() + half))
    assert found.verdict == "INCONCLUSIVE"
    one = compare(ask(tmp_path, *settings), tmp_path / "one", Machine(process_gains=gains, **quiet))
    assert (one.scope, one.verdict) == ("this process only", "FASTER")  # which is true, of that process


def test_processes_are_looked_at_from_the_fourth_on(tmp_path: Path) -> None:
    question = ask(tmp_path, "measure.processes=6", "measure.max_units=24", "measure.looks=6")
    found = compare(question, tmp_path / "out", Machine(gain=0.05, process_gains=[0.001 * i for i in range(6)]))
    (look,) = read_looks(tmp_path / "out")
    assert (look.units, found.verdict, found.n_processes) == (4, "FASTER", 4)


@pytest.mark.slow
def test_process_effects_closely(tmp_path: Path) -> None:
    """Each process favours an arm by 0.3%: no claim, and nothing missed, beyond the rate."""
    question = ask(tmp_path, NO_MARGIN, "measure.processes=4", "measure.max_units=16", "measure.looks=1")
    found = []
    for seed in range(100):
        gains = 0.003 * np.random.default_rng([9, seed]).standard_normal(4)
        machine = Machine(seed=seed, process_gains=gains.tolist())
        found.append(compare(reseed(question, seed), tmp_path / str(seed), machine))
    assert share(found, lambda c: c.verdict in DIFFERENT, "type I, four processes").low <= 0.05
    assert share(found, lambda c: covers(c, 0.0), "coverage of 0, four processes").high >= 0.95
