"""What differing tokens mean, for every exactness a pair may declare."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ab_sample import Costs, Machine, make_plan, measure_trials, run_looks

from specbench.measure.comparing import compare
from specbench.records import Comparison, Divergence, TrialRecord
from specbench.scenario.plan import RUNS, RunPlan

FOUND = Divergence("c3/t0", 17, 420, 99, 0.031)
LONGER = Machine(candidate=Costs(tokens=9))


def compared(plan: RunPlan, trials: list[TrialRecord]) -> Comparison:
    measured, looks = run_looks(plan, trials)
    return compare(plan, measured, [], looks)[0][0]


def diverging(plan: RunPlan, machine: Machine | None = None) -> list[TrialRecord]:
    """From the second unit on, the candidate's tokens differ."""
    trials = measure_trials(plan, machine)
    found = []
    for trial in trials:
        last_of_block = trial.pass_ == (1 if trial.mask else 3)
        differs = trial.segment > 0 and (trial.arm == "B" or (trial.mask is not None and trial.pass_ == 1))
        divergence = (
            replace(FOUND, position=FOUND.position + trial.segment) if trial.segment and last_of_block else None
        )
        found.append(replace(trial, tokens_sha256="other" if differs else trial.tokens_sha256, divergence=divergence))
    return found


def gate(comparison: Comparison, name: str = "tokens") -> tuple[str, str]:
    found = next(item for item in comparison.gates if item.name == name)
    return found.status, found.detail


@pytest.mark.parametrize("design", ["mirrored", RUNS])
def test_identical_tokens_are_compared_by_time(design: str) -> None:
    plan = make_plan(design, 4)
    comparison = compared(plan, measure_trials(plan))
    assert (comparison.tokens_identical, comparison.metric, comparison.first_divergence) == (True, "time", None)
    assert gate(comparison)[0] == "pass"


@pytest.mark.parametrize("design", ["mirrored", RUNS])
def test_bit_identical_pairs_that_differ_are_invalid(design: str) -> None:
    plan = make_plan(design, 4)
    comparison = compared(plan, diverging(plan))
    assert comparison.verdict == "INVALID"
    assert comparison.tokens_identical is False
    assert comparison.first_divergence == replace(FOUND, position=18)
    status, detail = gate(comparison)
    assert status == "fail"
    assert "c3/t0, output position 18: token 420 against token 99, 0.031 apart in logits" in detail
    assert comparison.reasons == [f"tokens: {detail}"]
    assert any("promises equal tokens" in line for line in comparison.in_words)


def test_invalid_ends_at_the_look_that_sees_it() -> None:
    plan = make_plan(RUNS, 20)
    _, looks = run_looks(plan, diverging(plan))
    assert [(look.units, look.verdict, look.settled) for look in looks] == [(4, "INVALID", True)]


def test_numerics_in_float32_must_be_identical() -> None:
    plan = make_plan(RUNS, 4, dtype="float32", exactness="numerically-equivalent")
    assert compared(plan, diverging(plan)).verdict == "INVALID"
    assert compared(plan, measure_trials(plan)).verdict != "INVALID"


def test_numerics_in_bfloat16_are_labelled_and_compared_by_throughput() -> None:
    plan = make_plan(RUNS, 4, exactness="numerically-equivalent")
    comparison = compared(plan, diverging(plan, LONGER))
    assert comparison.verdict != "INVALID"
    assert comparison.metric == "throughput"
    assert comparison.speedup_pct == pytest.approx(12.5)
    assert gate(comparison)[0] == "warn"
    assert gate(comparison)[1].startswith("tokens differ")
    assert "bfloat16" in comparison.token_rule
    assert any("committed tokens per second" in line for line in comparison.in_words)
    assert comparison.decomposition["tokens_per_step"] == pytest.approx(0.1177830356)


def test_replayed_lengths_need_equal_counts_alone() -> None:
    plan = make_plan(RUNS, 4, exactness="numerically-equivalent")
    trials = [replace(trial, label="replayed acceptance") for trial in diverging(plan)]
    comparison = compared(plan, trials)
    assert gate(comparison)[0] == "pass"
    assert "replayed" in comparison.token_rule
    assert any("labelled replayed acceptance" in line for line in comparison.in_words)
    uneven = [replace(trial, label="replayed acceptance") for trial in diverging(plan, LONGER)]
    assert gate(compared(plan, uneven))[0] == "warn"


def test_draws_of_one_distribution_are_not_gated() -> None:
    plan = make_plan(RUNS, 4, dtype="float32", exactness="distribution-preserving")
    comparison = compared(plan, diverging(plan, LONGER))
    assert gate(comparison)[0] == "n/a"
    assert comparison.verdict != "INVALID"
    assert comparison.metric == "throughput"
    assert not comparison.output_changed


@pytest.mark.parametrize("exactness", ["changes-output", "known-defect"])
def test_declared_changes_come_first_in_the_verdict(exactness: str) -> None:
    plan = make_plan(RUNS, 4, exactness=exactness)
    comparison = compared(plan, diverging(plan, Machine(candidate=Costs(device_us=700.0))))
    assert comparison.output_changed
    assert comparison.headline.startswith("OUTPUT CHANGED: ")
    assert gate(comparison)[0] == "warn"


def test_unknown_ids_are_not_a_pass() -> None:
    plan = make_plan(RUNS, 4)
    trials = [replace(trial, tokens_sha256=None) for trial in measure_trials(plan)]
    comparison = compared(plan, trials)
    assert (comparison.tokens_identical, gate(comparison)[0]) == (None, "n/a")
    assert gate(comparison, "repeatable")[0] == "n/a"
    uneven = [replace(trial, tokens_sha256=None) for trial in measure_trials(plan, LONGER)]
    assert compared(plan, uneven).verdict == "INVALID"


@pytest.mark.parametrize(("exactness", "status"), [("bit-identical", "fail"), ("distribution-preserving", "warn")])
def test_an_arm_that_does_not_repeat_itself(exactness: str, status: str) -> None:
    plan = make_plan(RUNS, 4, exactness=exactness)
    trials = [replace(t, tokens_sha256="odd") if t.trial == 0 else t for t in measure_trials(plan)]
    assert gate(compared(plan, trials), "repeatable")[0] == status


def test_an_arm_without_a_token_has_no_throughput() -> None:
    plan = make_plan(RUNS, 4, exactness="changes-output")
    comparison = compared(plan, measure_trials(plan, Machine(candidate=Costs(tokens=0))))
    assert comparison.verdict == "INVALID"
    assert comparison.reasons == ["tokens: an arm committed no token in a unit"]
    assert comparison.speedup_pct is None
    assert comparison.units == []


def test_equal_ends_are_told() -> None:
    plan = make_plan(RUNS, 2)
    trials = diverging(plan)
    trials[-1] = replace(trials[-1], divergence=Divergence("c0/t0", 5, None, 7))
    assert "the end against token 7" in gate(compared(plan, trials))[1]
