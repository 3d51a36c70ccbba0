"""Each gate of a comparison passes on clean units and speaks up about the one thing that spoils them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from ab_sample import (
    SUBJECT,
    Costs,
    Machine,
    make_comparison,
    make_plan,
    make_point,
    make_requests,
    measure_trials,
    run_from_log_ratios,
    run_looks,
)

from specbench.measure.ab_gates import gate_aa
from specbench.measure.comparing import compare
from specbench.records import (
    Comparison,
    Evidence,
    RequestRecord,
    SamplingAudit,
    SamplingValues,
    ToggleCounts,
    TrialRecord,
    VariantCounts,
)
from specbench.scenario.plan import RUNS, RunPlan, Trial

DESIGNS = ["mirrored", RUNS]


def judged(plan: RunPlan, trials: Sequence[TrialRecord], requests: Sequence[RequestRecord] = ()) -> Comparison:
    measured, looks = run_looks(plan, trials)
    return compare(plan, measured, requests or make_requests(measured), looks)[0][0]


def gate(comparison: Comparison, name: str) -> tuple[str, str]:
    (found,) = [item for item in comparison.gates if item.name == name]
    return found.status, found.detail


def from_values(values: Sequence[float], **settings: object) -> Comparison:
    plan = make_plan(RUNS, len(values), stop_early=False, **settings)  # type: ignore[arg-type]
    return judged(plan, run_from_log_ratios(plan, values))


def quiet(count: int = 20, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 0.01 * np.random.default_rng(seed).standard_normal(count)


CLEAN = Evidence(
    other_cpu_fraction=0.01, cpu_mhz_start=3000.0, cpu_mhz_end=3000.0, governor="performance", cpu_throttle_events=0
)


def noisy(seed: int = 0, sd: float = 0.01) -> Callable[[Trial, int, str], float]:
    rng = np.random.default_rng(seed)
    return lambda _trial, _period, _arm: float(np.exp(sd * rng.standard_normal()))


@pytest.mark.parametrize("design", DESIGNS)
def test_a_clean_comparison_passes_every_gate(design: str) -> None:
    plan = make_plan(design, 12)
    trials = measure_trials(plan, Machine(factors=noisy(), evidence={"A": CLEAN, "B": CLEAN}))
    comparison = judged(plan, trials)
    assert {item.status for item in comparison.gates} == {"pass", "n/a"}
    assert all(item.detail for item in comparison.gates)
    assert len({item.name for item in comparison.gates}) == len(comparison.gates)


def spoiled(
    design: str, change: Callable[[TrialRecord], TrialRecord], evidence: dict[str, Evidence] | None = None
) -> Comparison:
    plan = make_plan(design, 12)
    machine = Machine(factors=noisy(), evidence=evidence or {"A": CLEAN, "B": CLEAN})
    return judged(plan, [change(trial) for trial in measure_trials(plan, machine)])


@pytest.mark.parametrize(
    "column", ["num_context", "num_generation", "num_context_tokens", "draft_len", "num_committed"]
)
def test_passes_that_ran_other_steps_are_invalid(column: str) -> None:
    def change(trial: TrialRecord) -> TrialRecord:
        if trial.pass_ == 1 and trial.segment == 1:
            trial.steps.columns[column][2] += 1
        return trial

    comparison = spoiled("mirrored", change)
    assert gate(comparison, "same steps")[0] == "fail"
    assert comparison.verdict == "INVALID"


@pytest.mark.parametrize("change", [{"first_step": 3}, {"num_steps": 3}])
def test_passes_that_cut_equal_steps_into_other_periods_are_invalid(change: dict[str, int]) -> None:
    def recut(trial: TrialRecord) -> TrialRecord:
        if trial.pass_ == 0 or trial.segment != 1:
            return trial
        return replace(trial, periods=[replace(trial.periods[0], **change), *trial.periods[1:]])  # type: ignore[arg-type]

    comparison = spoiled("mirrored", recut)
    status, detail = gate(comparison, "same steps")
    assert status == "fail"
    assert "1 of" in detail
    assert "other periods" in detail
    assert comparison.verdict == "INVALID"


def test_eager_steps_have_nothing_to_capture_in_any_variant() -> None:
    status, detail = gate(spoiled("mirrored", lambda trial: trial), "capture and compile")
    assert status == "n/a"
    assert "no variant has anything to capture" in detail


def captured(**counts: int) -> ToggleCounts:
    """What captured steps counted in a window."""
    return {"graphs": {"captured": VariantCounts(20, {"replays": 20, "padded_steps": 3, "eager_context": 0, **counts})}}


@pytest.mark.parametrize("design", DESIGNS)
def test_a_capture_in_the_window_is_invalid(design: str) -> None:
    def change(trial: TrialRecord) -> TrialRecord:
        return replace(trial, counters=captured(captures=int(trial.trial == 2)))

    comparison = spoiled(design, change)
    assert gate(comparison, "capture and compile") == ("fail", "1 in the window")
    assert comparison.reasons == ["capture and compile: 1 in the window"]
    clean = spoiled(design, lambda trial: replace(trial, counters=captured(captures=0)))
    assert gate(clean, "capture and compile")[0] == "pass"


@pytest.mark.parametrize("design", DESIGNS)
def test_a_collection_is_kept_and_marked(design: str) -> None:
    def change(trial: TrialRecord) -> TrialRecord:
        touched = replace(CLEAN, gc_collections=1, gc_ms=3.0)
        return replace(trial, evidence=touched) if trial.segment == 1 and trial.pass_ == 0 else trial

    comparison = spoiled(design, change)
    status, detail = gate(comparison, "garbage collection")
    assert status == "warn"
    assert "kept: the units of segment 1" in detail
    assert comparison.verdict != "INVALID"


def test_other_load_that_differs_between_arms_is_invalid() -> None:
    loaded = replace(CLEAN, other_cpu_fraction=0.4)
    both = spoiled(RUNS, lambda trial: trial, {"A": loaded, "B": loaded})
    assert gate(both, "other load")[0] == "warn"
    unlike = spoiled(RUNS, lambda trial: trial, {"A": CLEAN, "B": loaded})
    assert gate(unlike, "other load")[0] == "fail"
    assert "1.0% beside the baseline, 40.0% beside the other" in gate(unlike, "other load")[1]
    assert unlike.verdict == "INVALID"
    mirrored = spoiled("mirrored", lambda trial: trial, {"A": loaded})
    assert gate(mirrored, "other load")[0] == "warn"
    assert "by turns" in gate(mirrored, "other load")[1]


@pytest.mark.parametrize(
    ("beside", "status"),
    [
        ((0.30, 0.42), "warn"),
        ((0.0, 0.09), "warn"),
        ((0.03, 0.5), "fail"),
        ((0.5, 0.03), "fail"),
        ((0.04, 0.08), "warn"),
    ],
)
def test_an_arm_that_waits_is_not_taken_for_a_disturbed_one(beside: tuple[float, float], status: str) -> None:
    """A background job takes what is left: more beside the slower arm, whose slowness is then no artefact."""
    arms = {arm: replace(CLEAN, other_cpu_fraction=share) for arm, share in zip("AB", beside, strict=True)}
    plan = make_plan(RUNS, 12)
    slower = Machine(Costs(), Costs(idle_us=90.0), noisy(sd=0.002), evidence=arms)
    comparison = judged(plan, measure_trials(plan, slower))
    assert gate(comparison, "other load")[0] == status
    assert comparison.verdict == ("INVALID" if status == "fail" else "SLOWER")


def test_load_by_chance_in_one_run_is_no_reason_to_discard() -> None:
    def change(trial: TrialRecord) -> TrialRecord:
        return replace(trial, evidence=replace(CLEAN, other_cpu_fraction=0.9)) if trial.trial == 5 else trial

    assert gate(spoiled(RUNS, change), "other load")[0] == "warn"


def test_clocks_that_differ_between_arms() -> None:
    slower = replace(CLEAN, cpu_mhz_start=2990.0, cpu_mhz_end=2990.0)
    comparison = spoiled(RUNS, lambda trial: trial, {"A": CLEAN, "B": slower})
    status, detail = gate(comparison, "clocks")
    assert status == "warn"
    assert "3000.0 MHz against 2990.0 MHz, 0.33% apart" in detail
    near = spoiled(RUNS, lambda trial: trial, {"A": CLEAN, "B": replace(CLEAN, cpu_mhz_end=2999.0)})
    assert gate(near, "clocks")[0] == "pass"
    free = replace(CLEAN, governor="powersave")
    assert gate(spoiled(RUNS, lambda trial: trial, {"A": free, "B": free}), "clocks")[0] == "warn"
    unknown = Evidence()
    assert gate(spoiled(RUNS, lambda trial: trial, {"A": unknown, "B": unknown}), "clocks")[0] == "n/a"


def test_evidence_of_a_pass_is_said_to_be_shared() -> None:
    for evidence in (CLEAN, Evidence()):
        detail = gate(spoiled("mirrored", lambda trial: trial, {"A": evidence}), "clocks")[1]
        assert "both arms ran by turns within each pass" in detail


def test_arms_throttled_unlike_each_other_are_invalid() -> None:
    throttled = replace(CLEAN, cpu_throttle_events=3)
    unlike = spoiled(RUNS, lambda trial: trial, {"A": CLEAN, "B": throttled})
    assert gate(unlike, "clocks")[0] == "fail"
    assert "throttled unlike each other" in unlike.reasons[0]
    alike = spoiled(RUNS, lambda trial: trial, {"A": throttled, "B": throttled})
    assert gate(alike, "clocks")[0] == "warn"
    both = spoiled("mirrored", lambda trial: trial, {"A": throttled})
    assert gate(both, "clocks")[0] == "warn"


def test_clocks_and_warmth_of_a_gpu() -> None:
    def gpu(mhz: int, reasons: int = 0) -> Evidence:
        told = {"sm_mhz_min": mhz, "sm_mhz_max": mhz, "temperature_c": 60 + mhz % 7, "throttle_reasons": reasons}
        return Evidence(gpu=told)

    near = spoiled(RUNS, lambda trial: trial, {"A": gpu(1980), "B": gpu(1979)})
    assert gate(near, "clocks")[0] == "pass"
    assert "66.0 against 65.0 degrees C" in gate(near, "clocks")[1]
    assert gate(spoiled(RUNS, lambda trial: trial, {"A": gpu(1980), "B": gpu(1900)}), "clocks")[0] == "warn"
    assert gate(spoiled(RUNS, lambda trial: trial, {"A": gpu(1980), "B": gpu(1980, 4)}), "clocks")[0] == "fail"


# Gates that look at the units


def test_an_effect_that_drifts_is_not_warm() -> None:
    steady = from_values(list(quiet()))
    assert gate(steady, "warm")[0] == "pass"
    assert gate(steady, "halves")[0] == "pass"
    drifting = from_values(list(quiet() + np.linspace(0, 0.05, 20)))
    assert gate(drifting, "warm")[0] == "warn"
    assert gate(drifting, "halves")[0] == "warn"
    assert gate(from_values(list(quiet(4))), "warm")[0] == "n/a"


def test_effects_of_processes_are_no_drift() -> None:
    between = np.repeat([0.0, 0.05, 0.1, 0.15], 10)
    comparison = from_values(list(quiet(40) + between), processes=4)
    assert gate(comparison, "warm")[0] == "pass"
    assert gate(comparison, "halves")[0] == "pass"
    assert gate(comparison, "lag-1")[0] == "pass"
    inside = np.tile(np.linspace(0, 0.06, 10), 4)
    drifting = from_values(list(quiet(40) + between + inside), processes=4)
    assert gate(drifting, "warm")[0] == "warn"
    assert gate(drifting, "halves")[0] == "warn"


def test_an_order_effect_is_told_in_words() -> None:
    plan = make_plan(RUNS, 20, stop_early=False)
    leads = [trial.arm == "A" for trial in plan.trials if trial.pass_ == 0]
    values = quiet() + 0.05 * np.array(leads)
    comparison = judged(plan, run_from_log_ratios(plan, list(values)))
    assert gate(comparison, "order")[0] == "warn"
    assert any(line.startswith("The order of the arms matters") for line in comparison.in_words)
    assert gate(from_values(list(quiet())), "order")[0] == "pass"


def test_neighbours_that_agree_widen_the_interval() -> None:
    rng = np.random.default_rng(5)
    walk = np.zeros(60)
    for i in range(1, 60):
        walk[i] = 0.8 * walk[i - 1] + 0.01 * rng.standard_normal()
    together, apart = from_values(list(walk)), from_values(list(rng.permutation(walk)))
    assert gate(together, "lag-1")[0] == "warn"
    assert "ten batch means" in gate(together, "lag-1")[1]
    assert gate(apart, "lag-1")[0] == "pass"
    assert together.ci_high_pct is not None
    assert together.ci_low_pct is not None
    assert apart.ci_high_pct is not None
    assert apart.ci_low_pct is not None
    assert together.ci_high_pct - together.ci_low_pct > 1.3 * (apart.ci_high_pct - apart.ci_low_pct)
    assert "too narrow" in gate(from_values(list(walk[:16])), "lag-1")[1]


def test_units_that_are_not_alike_make_sums_disagree() -> None:
    plan = make_plan(RUNS, 12, stop_early=False)
    values = np.where(np.arange(12) % 2 == 0, 0.02, -0.02) + quiet(12)
    trials = run_from_log_ratios(plan, list(values))
    longer = [replace(t, wall_ns=t.wall_ns * 40) if t.segment % 2 == 0 else t for t in trials]
    assert gate(judged(plan, longer), "sums")[0] == "warn"
    assert gate(judged(plan, trials), "sums")[0] == "pass"


def test_spikes_in_one_arm_alone_are_seen_in_units() -> None:
    """Nominal 95% intervals cover 68% to 81% then. What was hit at all must be said, in nearly every case."""
    rng = np.random.default_rng(6)
    warned = {"one arm": 0, "both arms": 0, "none": 0}
    cases = 20
    for _ in range(cases):
        base = 0.01 * rng.standard_normal(40)
        hits = (rng.random(40) < 0.1) * rng.uniform(5, 20, 40) * 0.01
        hits[0] = 0.1  # one at least
        signs = np.where(np.arange(40) % 2 == 0, 1.0, -1.0)
        for name, values in (("one arm", base - hits), ("both arms", base + hits * signs), ("none", base)):
            warned[name] += gate(from_values(list(values)), "outliers")[0] == "warn"
    assert warned["one arm"] >= 0.8 * cases
    assert warned["none"] <= 0.1 * cases
    assert warned["both arms"] <= 0.4 * cases


@pytest.mark.parametrize(("arms", "status"), [("B", "warn"), ("A", "warn"), ("AB", "pass")])
def test_slow_steps_of_one_arm_are_seen(arms: str, status: str) -> None:
    """A spike in every period of an arm: no unit is an outlier, since each of them has some."""
    plan = make_plan(units=24, period_steps=10, stop_early=False)
    slow = lambda _trial, step, arm: 1500.0 if step % 11 == 5 and arm in arms else 0.0  # noqa: E731
    comparison = judged(plan, measure_trials(plan, Machine(factors=noisy(sd=0.002), slow_step=slow)))
    found, detail = gate(comparison, "outliers")
    assert found == status
    assert "1.5 times the median" in detail


# Requests and content


def test_failed_requests_are_invalid() -> None:
    plan = make_plan(RUNS, 4)
    trials = measure_trials(plan, Machine(factors=noisy()))
    requests = make_requests(trials)
    requests[3] = replace(requests[3], finish_reason="error", error="the server hung up")
    comparison = judged(plan, trials, requests)
    assert gate(comparison, "requests")[0] == "fail"
    assert "the server hung up" in comparison.reasons[0]


def test_truncated_and_looping_outputs_are_told() -> None:
    plan = make_plan(RUNS, 4)
    trials = measure_trials(plan, Machine(factors=noisy()))
    cut = judged(plan, trials, make_requests(trials, output_tokens=10))
    assert gate(cut, "requests")[0] == "warn"
    loops = judged(plan, trials, make_requests(trials, repeated_tail_tokens=60))
    assert gate(loops, "repetition loops")[0] == "warn"


def test_what_subjects_count_of_themselves() -> None:
    for hits, status in ((2, "warn"), (0, "pass")):
        subject = {**SUBJECT, "prefix_cache_hits": hits}
        assert gate(spoiled(RUNS, lambda t, s=subject: replace(t, subject=s)), "prefix cache")[0] == status  # type: ignore[misc]


@pytest.mark.parametrize("design", DESIGNS)
def test_steps_that_found_no_captured_program_warn(design: str) -> None:
    def change(trial: TrialRecord) -> TrialRecord:
        return replace(trial, counters=captured(eager_not_captured=int(trial.trial == 2)))

    status, detail = gate(spoiled(design, change), "eager fallbacks")
    assert status == "warn"
    assert detail.startswith("1 steps; ")
    clean = spoiled(design, lambda trial: replace(trial, counters=captured(eager_not_captured=0)))
    assert gate(clean, "eager fallbacks")[0] == "pass"


@pytest.mark.parametrize("design", DESIGNS)
def test_rows_that_were_served_otherwise_than_asked_are_invalid(design: str) -> None:
    """Whatever the figures say, they are not of the requests that were made."""
    asked, greedy = SamplingValues(1.0, 2147483647, 1.0), SamplingValues(0.0, 0, 0.0)
    variants = {"graphs": "captured", "capture_params": "clear_at_copy"}
    right, wrong = (SamplingAudit(variants, asked, served, 10) for served in (asked, greedy))

    def change(trial: TrialRecord) -> TrialRecord:
        return replace(trial, sampling_audit=[right, wrong] if trial.trial == 2 else [right])

    comparison = spoiled(design, change)
    assert gate(comparison, "sampling parameters")[0] == "fail"
    assert comparison.verdict == "INVALID"
    assert comparison.reasons[0].startswith("sampling parameters: 10 of ")
    assert gate(spoiled(design, lambda t: replace(t, sampling_audit=[right])), "sampling parameters")[0] == "pass"


def test_labels_that_are_not_natural_warn() -> None:
    assert gate(spoiled(RUNS, lambda t: replace(t, label="forced acceptance")), "content")[0] == "warn"


def test_steps_and_requests_must_agree_in_whole_runs() -> None:
    wrong = spoiled(RUNS, lambda t: replace(t, committed_tokens=t.committed_tokens + 1))
    assert gate(wrong, "token counts")[0] == "fail"


def test_trials_cut_by_a_timeout_are_told() -> None:
    cut = spoiled(RUNS, lambda t: replace(t, status="timeout") if t.trial == 1 else t)
    assert gate(cut, "cut trials") == ("warn", f"1 of {4 * cut.n_units} were cut by measure.timeout")


# A/A


def test_the_alarm_of_aa_comparisons() -> None:
    rejected = [0.01] * 3 + [0.5] * 17
    assert gate_aa(rejected, 0.05).status == "pass"
    assert gate_aa([0.01, *rejected[:-1]], 0.05).status == "fail"
    assert gate_aa([0.01], 0.05).status == "pass"
    assert gate_aa([None], 0.05).status == "n/a"
    assert "4 of 20" in gate_aa([0.01, *rejected[:-1]], 0.05).detail


def test_failed_aa_makes_the_others_invalid() -> None:
    points = [make_point(0, "off"), make_point(1, "on")]
    roles = ["A/A"] * 3 + ["candidate"]
    comparisons = [
        make_comparison(i, RUNS, role=role, candidate=0 if role == "A/A" else 1, differences=())
        for i, role in enumerate(roles)
    ]
    plan = make_plan(units=8, comparisons=comparisons, points=points, num_looks=1)
    shift = [0.05, 0.05, 0.05, 0.05]
    trials = [t for i in range(4) for t in run_from_log_ratios(plan, list(quiet(8, i) + shift[i]), i)]
    measured, looks = run_looks(plan, trials)
    found, _ = compare(plan, measured, [], looks)
    assert [item.verdict for item in found] == ["FASTER", "FASTER", "FASTER", "INVALID"]
    assert "3 of 3 A/A comparisons found a difference" in found[3].reasons[0]


def test_a_delay_in_the_device_alone_shows_in_the_verdict() -> None:
    plan = make_plan(units=12)
    comparison = judged(plan, measure_trials(plan, Machine(Costs(), Costs(device_us=810.0), noisy(sd=0.002))))
    assert comparison.verdict == "SLOWER"
    assert comparison.decomposition["device"] == pytest.approx(-0.01, abs=0.003)
