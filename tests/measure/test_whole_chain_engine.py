"""From the question to the verdict on the real engine: what holds on a busy machine; marked slow, what needs rest."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from whole_chain import (
    SCENARIO,
    ask,
    collect_nothing,
    compare,
    conclude,
    covers,
    doubts,
    gate,
    go_on,
    share,
    start,
)

from specbench.measure.plan_file import read_plan_file
from specbench.measure.results_folder import PLAN
from specbench.scenario.plan import Question
from specbench.scenario.questions import ask_selftest

NGRAM = ("drafter=none", "drafter=ngram,drafter.draft_len=2")
SMOLLM2 = """
name: chain
model: smollm2-135m
drafter: none
workload: {kind: chat80, num_requests: 8, osl: 48, concurrency: 1}
sampling: {temperature: 0.7, top_p: 0.9, seed: 1}
engine: {device: cpu, dtype: bfloat16, max_seq_len: 512}
measure: {warmup_requests: 1, quads_per_segment: 6, max_units: 12, looks: 1}
"""


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What rests on no figure of time can go without."""
    if request.node.get_closest_marker("slow") is None:
        collect_nothing(monkeypatch)


def ask_few(folder: Path, *settings: str, **changes: Any) -> Question:
    return ask(folder, "measure.max_units=4", "measure.looks=1", *settings, **changes)


@pytest.mark.parametrize(
    ("design", "arm"), [("mirrored", "B"), ("runs", "B"), pytest.param("mirrored", "A", marks=pytest.mark.slow)]
)
def test_a_changed_token_is_invalid_and_shown(tmp_path: Path, design: str, arm: str) -> None:
    settings = [f"measure.design={design}", "measure.max_units=2"]
    found = compare(ask_few(tmp_path, *settings, injected={arm: {"kind": "token"}}), tmp_path / "out")
    assert found.verdict == "INVALID"
    assert found.tokens_identical is False
    assert any(reason.startswith("tokens: tokens differ") for reason in found.reasons)
    where = found.first_divergence
    assert where is not None
    ours, theirs = where.baseline_token_id, where.candidate_token_id
    changed, kept = (ours, theirs) if arm == "A" else (theirs, ours)
    assert kept is not None
    assert changed == (kept - 1 if kept else 1)
    assert where.margin is not None  # of the weights that were measured, over the prefix that both arms share
    assert math.isfinite(where.margin)


@pytest.mark.slow
def test_numerics_may_differ_in_bfloat16_and_the_report_says_so(tmp_path: Path) -> None:
    """A drafter changes the shapes that are computed with: a token that differs is no defect, but it is told."""
    settings = ["measure.max_units=2", "engine.dtype=bfloat16"]
    found = compare(ask_few(tmp_path, *settings, arms=NGRAM, injected={"B": {"kind": "token"}}), tmp_path / "out")
    assert (found.design, found.exactness) == ("runs", "numerically-equivalent")
    assert found.verdict != "INVALID"
    assert found.metric == "throughput"
    assert found.first_divergence is not None
    assert gate(found, "tokens").status == "warn"
    assert "tokens differ" in gate(found, "tokens").detail


@pytest.mark.slow
def test_numerics_may_not_differ_in_float32(tmp_path: Path) -> None:
    question = ask_few(tmp_path, "measure.max_units=2", arms=NGRAM, injected={"B": {"kind": "token"}})
    assert compare(question, tmp_path / "out").verdict == "INVALID"


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["B", "A"])
def test_a_delay_of_30_percent_has_the_right_sign(tmp_path: Path, arm: str) -> None:
    """In the median unit, whatever else the machine does."""
    settings = ["measure.max_units=8", "measure.quads_per_segment=4"]
    question = ask_few(tmp_path, *settings, injected={arm: {"kind": "delay", "step_percent": 30}})
    found = compare(question, tmp_path / "out")
    median = found.second_line["hodges_lehmann_pct"]
    assert median is not None
    wrong = ("FASTER", "FASTER BUT NEGLIGIBLE") if arm == "B" else ("SLOWER", "SLOWER BUT NEGLIGIBLE")
    assert (median < 0) == (arm == "B")
    assert found.verdict not in (*wrong, "EQUIVALENT", "INVALID")
    assert found.tokens_identical is True
    for name in ("tokens", "same steps"):
        assert gate(found, name).status == "pass"


def test_a_selftest_compares_equal_arms_and_two_delayed_ones(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(SCENARIO)
    question = ask_selftest(path, ["measure.max_units=4", "measure.confidence=99.9%"], num_aa=1)
    start(question, tmp_path / "out")
    assert go_on(tmp_path / "out") == "complete"
    *equal, delay, swapped = conclude(tmp_path / "out").comparisons
    assert [c.role for c in equal] == ["A/A"]
    for found in (*equal, delay, swapped):
        assert found.tokens_identical is True
        assert gate(found, "same steps").status == "pass"
        assert found.n_units == 4
        assert found.p_value is not None


# On the real model: `make test-slow`


def ask_smollm2(folder: Path, *settings: str, **changes: Any) -> Question:
    return ask(folder, *settings, scenario=SMOLLM2, **changes)


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2_dir")
def test_equal_arms_of_a_real_model(tmp_path: Path) -> None:
    """Twenty comparisons of a variant with itself, and a delay of 10% in either arm."""
    path = tmp_path / "chain.yaml"
    path.write_text(SMOLLM2)
    start(ask_selftest(path), tmp_path / "out")
    assert go_on(tmp_path / "out") == "complete"
    *equal, delay, swapped = conclude(tmp_path / "out").comparisons
    assert len(equal) == 20
    alarms = share(equal, lambda c: c.p_value is not None and c.p_value <= 0.05, "A/A found different at 5%")
    assert alarms.low <= 0.05
    assert alarms.estimate < 4 / 20
    assert not any(c.reasons for c in (*equal, delay, swapped))
    assert all(c.tokens_identical for c in equal)
    for found, expected in ((delay, 100 / 1.1 - 100), (swapped, 10.0)):
        print(found.role, found.verdict, found.speedup_pct, found.ci_low_pct, found.ci_high_pct)
        assert covers(found, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2_dir")
def test_a_delay_of_one_percent_of_a_real_step(tmp_path: Path) -> None:
    """It is found, and the interval covers what it comes to beside the steps that were measured."""
    settings = ["measure.max_units=480", "measure.quads_per_segment=12", "measure.looks=5", "measure.margin=0.2%"]
    question = ask_smollm2(tmp_path, *settings, injected={"B": {"kind": "delay", "step_percent": 1.0, "lane": "both"}})
    # Both arms are equal but for the delay.
    question = replace(question, comparisons=tuple(replace(c, candidate=c.baseline) for c in question.comparisons))
    start(question, tmp_path / "out")
    assert go_on(tmp_path / "out") == "complete"
    (found,) = conclude(tmp_path / "out").comparisons
    (planned,) = read_plan_file(tmp_path / "out" / PLAN).comparisons
    assert planned.injected is not None
    step_ms = found.step_ms["baseline"]["step_ms"]
    assert step_ms is not None
    expected = 100 * (step_ms / (step_ms + planned.injected["B"]["us"] / 1e3) - 1)
    print(found.verdict, found.n_units, found.speedup_pct, found.ci_low_pct, found.ci_high_pct, expected, doubts(found))
    assert covers(found, expected)
    assert found.verdict == "SLOWER"


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2_dir")
@pytest.mark.parametrize(
    "defect",
    [{"kind": "hidden_sleep", "us": 3000}, {"kind": "load", "threads": 2}, {"kind": "spike", "every": 40, "ms": 200}],
    ids=str,
)
def test_defects_on_a_real_model_are_slower_or_doubted(tmp_path: Path, defect: dict[str, Any]) -> None:
    settings = ["measure.max_units=48"]
    found = compare(ask_smollm2(tmp_path, *settings, injected={"B": defect}), tmp_path / "out")
    print(found.verdict, found.speedup_pct, doubts(found), found.decomposition)
    assert found.verdict not in ("FASTER", "FASTER BUT NEGLIGIBLE", "EQUIVALENT")
    assert found.verdict == "SLOWER" or doubts(found) & {"outliers", "other load"}
    if defect["kind"] == "hidden_sleep":
        assert found.verdict == "SLOWER"
        # It is seen where it was put: the device waits, and neither computes more nor is the host in its way.
        parts = found.decomposition
        assert parts["other_idle"] == min(parts.values())


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2_dir")
def test_a_changed_token_of_a_real_model_is_invalid(tmp_path: Path) -> None:
    found = compare(ask_smollm2(tmp_path, injected={"B": {"kind": "token"}}), tmp_path / "out")
    assert found.verdict == "INVALID"
    assert found.first_divergence is not None
    assert found.first_divergence.margin is not None
    assert found.first_divergence.candidate_token_id != found.first_divergence.baseline_token_id
