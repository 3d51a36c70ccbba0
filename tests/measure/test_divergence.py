"""Where outputs first differ, whose token is whose, and by how much the model preferred it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from engine_driver import tiny_model
from fake_subject import FakeClock, FakeSource
from switching_subject import POINT, SwitchingSubject, complement, run_pass

from specbench.engine.scoring import logit_margin, score_next_token
from specbench.measure.divergence import find_divergence, first_difference
from specbench.measure.interruption import StopSignal
from specbench.measure.trials import MeasuredTrial, TrialContext, measure_run
from specbench.records import Divergence
from specbench.scenario.plan import Trial

TOKEN = {"kind": "token"}


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({"a": [1, 2], "b": [3]}, {"a": [1, 2], "b": [3]}, None),
        ({"a": [1, 2], "b": [3]}, {"b": [3], "a": [1, 2]}, None),
        ({"a": [1, 2, 3], "b": [3]}, {"a": [1, 9, 3], "b": [4]}, Divergence("a", 1, 2, 9)),
        ({"b": [3], "a": [1, 2]}, {"a": [1, 9], "b": [4]}, Divergence("b", 0, 3, 4)),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, Divergence("a", 2, None, 3)),
        ({"a": [1, 2, 3]}, {"a": [1]}, Divergence("a", 1, 2, None)),
        ({"a": [1]}, {"a": [1], "b": [5]}, Divergence("b", 0, None, 5)),
        ({"a": [1], "b": [5]}, {"a": [1]}, Divergence("b", 0, 5, None)),
    ],
)
def test_first_difference(ours: dict[str, list[int]], theirs: dict[str, list[int]], expected: Divergence) -> None:
    assert first_difference(ours, theirs) == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({"a": [1, 2]}, {"a": [1, 2, 3], "b": [1]}, None),
        ({"a": [1, 2], "b": [7, 8]}, {"a": [1], "b": [7, 9, 1]}, Divergence("b", 1, 8, 9)),
    ],
)
def test_what_a_cut_output_lacks_is_no_difference(
    ours: dict[str, list[int]], theirs: dict[str, list[int]], expected: Divergence | None
) -> None:
    assert first_difference(ours, theirs, whole=False) == expected


def passes(mask: str, injected_in: tuple[int, ...], arm: str = "B") -> list[MeasuredTrial]:
    return [
        run_pass(
            SwitchingSubject(FakeClock(7_000 * (1 + number))),
            mask if number == 0 else complement(mask),
            max_tokens=30,
            pass_=number,
            injected={arm: TOKEN} if number in injected_in else None,
        )
        for number in (0, 1)
    ]


def test_equal_passes_do_not_diverge() -> None:
    first, second = passes("ABBA", ())
    assert find_divergence(first, second) is None


@pytest.mark.parametrize("mask", ["ABBA", "BAAB"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("arm", ["A", "B"])
def test_a_token_belongs_to_the_arm_whose_step_committed_it(mask: str, number: int, arm: str) -> None:
    first, second = passes(mask, (number,), arm)
    truth = (second if number == 0 else first).outputs["c0/t0"]
    found = find_divergence(first, second)
    assert found is not None
    true, changed = truth[found.position], (truth[found.position] or 2) - 1
    expected = (changed, true) if arm == "A" else (true, changed)
    assert (found.baseline_token_id, found.candidate_token_id) == expected
    assert found.margin is None


def test_tokens_of_a_guard_step_belong_to_the_arm_it_was_switched_to() -> None:
    # One request, its prompt is the first guard step of the candidate's period: token 0 is the candidate's.
    first, second = passes("BAAB", (0,))
    found = find_divergence(first, second)
    assert found is not None
    assert found.position == 0
    assert found.candidate_token_id == first.outputs["c0/t0"][0]
    assert found.baseline_token_id == second.outputs["c0/t0"][0]


def run(arm: str, injected: bool = False, timeout_s: float | None = None) -> MeasuredTrial:
    subject = SwitchingSubject()
    context = TrialContext(subject, subject.clock, StopSignal(), None, "natural")
    defects = {"B": TOKEN} if injected else None
    trial = Trial(0, 0, 0, 0, None, 0, arm=arm)
    return measure_run(context, POINT, trial, 0, FakeSource([1, 1], 9), 2, timeout_s=timeout_s, injected=defects)


def test_runs_differ_where_one_arm_changed_a_token() -> None:
    baseline, candidate = run("A", injected=True), run("B", injected=True)
    expected = Divergence("c0/t0", 0, baseline.outputs["c0/t0"][0], candidate.outputs["c0/t0"][0])
    assert find_divergence(baseline, candidate) == expected
    assert find_divergence(candidate, baseline) == expected  # whichever was run first
    assert find_divergence(baseline, run("B")) is None


def test_a_run_cut_by_its_time_limit_is_compared_as_far_as_it_got() -> None:
    cut = run("B", timeout_s=0.002)
    assert cut.record.status == "timeout"
    assert find_divergence(run("A"), cut) is None
    assert find_divergence(run("A"), run("B", injected=True, timeout_s=0.002)) is not None


def test_the_margin_is_the_baselines_logit_minus_the_candidates() -> None:
    loaded = tiny_model()
    baseline, candidate = run("A"), run("B", injected=True)
    found = find_divergence(baseline, candidate, partial(logit_margin, loaded))
    assert found is not None
    assert found.baseline_token_id is not None
    assert found.candidate_token_id is not None
    logits = score_next_token(loaded, baseline.prompts["c0/t0"])
    expected = float(logits[found.baseline_token_id] - logits[found.candidate_token_id])
    assert found.margin == pytest.approx(expected)
    assert torch.isfinite(logits).all()
