"""The gate of the effective sampling parameters, and how what it is judged by gets from an engine into a trial."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ab_sample import make_plan, measure_trials
from arm_process import Prompts, Settings, run_loop, tiny_config
from fake_subject import FakeClock, FakeSource, FakeSubject
from switching_subject import POINT

from specbench import encoding
from specbench.engine.config import EngineConfig
from specbench.engine.sampling.params import SamplingParams
from specbench.measure.interruption import StopSignal
from specbench.measure.recording import record_window
from specbench.measure.remote import RemoteSubject
from specbench.measure.sampling_audit import describe_values, gate_sampling
from specbench.measure.subject import BuiltinSubject, Telemetry
from specbench.measure.trials import TrialContext, measure_run
from specbench.records import Gate, SamplingAudit, SamplingValues, StepTable, TrialRecord
from specbench.scenario.plan import RUNS, Trial

OFF = 2147483647
SAMPLED, HOT = SamplingValues(0.8999999761581421, 40, 0.949999988079071), SamplingValues(2.0, OFF, 1.0)
LEAKED, GREEDY = SamplingValues(0.699999988079071, 50, 0.8999999761581421), SamplingValues(0.0, 0, 0.0)
RIGHT = {"graphs": "captured", "capture_params": "real_params"}
LEAK = {"graphs": "captured", "capture_params": "leak"}
ARGMAX = {"graphs": "captured", "capture_params": "clear_at_copy"}


def trials(*audits: Sequence[SamplingAudit] | None, **sets: dict[str, int]) -> list[TrialRecord]:
    """One trial an audit; ``sets``: what was captured, by variant of ``capture_params``."""
    (first, *_) = measure_trials(make_plan(RUNS, 2))
    subject = {**first.subject, "captured_steps": {"sets": sets} if sets else None}
    return [replace(first, subject=subject, sampling_audit=None if one is None else list(one)) for one in audits]


def captured(advanced: int = 4, without_draws: int = 0, with_override: int = 0) -> dict[str, int]:
    return {
        "advanced_steps": advanced, "advanced_without_draws": without_draws, "copies_with_override": with_override
    }  # fmt: skip


def test_rows_that_were_served_as_they_asked_pass() -> None:
    found = trials(
        [SamplingAudit(RIGHT, SAMPLED, SAMPLED, 100), SamplingAudit(RIGHT, GREEDY, GREEDY, 60)],
        [SamplingAudit(RIGHT, SAMPLED, SAMPLED, 40), SamplingAudit(RIGHT, HOT, HOT, 7)],
    )
    detail = "207 rows were served as they asked for (temperature 0.9, top_k 40, top_p 0.95; greedy; temperature 2)"
    assert gate_sampling(found) == Gate("sampling parameters", "pass", detail)


def test_kinds_beyond_the_commonest_are_counted() -> None:
    kinds = [SamplingValues(1.0 + index, OFF, 1.0) for index in range(5)]
    found = trials([SamplingAudit(RIGHT, kind, kind, 10 - index) for index, kind in enumerate(kinds)])
    assert gate_sampling(found).detail.endswith("(temperature 1; temperature 2; temperature 3 and 2 other kinds)")


@pytest.mark.parametrize(
    ("variants", "served", "words"),
    [
        (
            LEAK,
            LEAKED,
            "capture_params=leak, a known defect: asked for temperature 2, served temperature 0.7, top_k 50",
        ),
        (ARGMAX, GREEDY, "clear_at_copy, a known defect: asked for temperature 2, served no draw at all, the argmax"),
        (RIGHT, SAMPLED, "graphs=captured, capture_params=real_params: asked for temperature 2, served temperature"),
    ],
)
def test_rows_that_were_not_fail_and_say_under_which_variant(
    variants: dict[str, str], served: SamplingValues, words: str
) -> None:
    entries = [SamplingAudit(RIGHT, SAMPLED, SAMPLED, 90), SamplingAudit(variants, HOT, served, 10)]
    gate = gate_sampling(trials([entries[0]], [entries[1]]))
    assert gate.status == "fail"
    assert gate.detail.startswith("10 of 100 rows were served otherwise than they asked for: ")
    assert words in gate.detail
    assert "(10 rows)" in gate.detail


def test_one_wrong_row_is_enough() -> None:
    entries = [SamplingAudit(RIGHT, SAMPLED, SAMPLED, 10**6), SamplingAudit(RIGHT, SAMPLED, GREEDY, 1)]
    assert gate_sampling(trials(entries)).status == "fail"


def test_what_does_not_audit_is_not_a_pass() -> None:
    gate = gate_sampling(trials(None, None))
    assert gate == Gate("sampling parameters", "n/a", "what was measured does not tell what it served requests with")


def test_an_arm_that_audits_is_judged_beside_one_that_does_not() -> None:
    """Of two commits, the older one may not tell."""
    assert gate_sampling(trials(None, [SamplingAudit(RIGHT, HOT, HOT, 5)])).detail.startswith("5 rows")
    assert gate_sampling(trials(None, [SamplingAudit(LEAK, HOT, LEAKED, 5)])).status == "fail"


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (captured(without_draws=3), "3 of 4 captured steps that should draw tokens recorded the argmax (leak)"),
        (captured(with_override=2), "2 captured steps still have the override (leak)"),
    ],
)
def test_captured_steps_that_are_wrong_fail_though_nobody_asked_for_sampling(kept: dict[str, int], words: str) -> None:
    entries = [SamplingAudit(LEAK, GREEDY, GREEDY, 50)]
    assert gate_sampling(trials(entries, leak=kept)) == Gate("sampling parameters", "fail", words)
    # Only of those that served, and only where steps were captured.
    assert gate_sampling(trials([SamplingAudit(RIGHT, GREEDY, GREEDY, 50)], leak=kept)).status == "pass"
    eager = {**LEAK, "graphs": "off"}
    assert gate_sampling(trials([SamplingAudit(eager, GREEDY, GREEDY, 50)], leak=kept)).status == "pass"
    assert gate_sampling(trials(entries, leak=captured())).status == "pass"


def test_both_faults_are_told() -> None:
    gate = gate_sampling(trials([SamplingAudit(LEAK, HOT, LEAKED, 5)], leak=captured(with_override=4)))
    assert "5 of 5 rows" in gate.detail
    assert "4 captured steps still have the override (leak)" in gate.detail


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (GREEDY, "greedy"),
        (HOT, "temperature 2"),
        (SamplingValues(1.0, 5, 1.0), "temperature 1, top_k 5"),
        (SamplingValues(1.0, OFF, 0.5), "temperature 1, top_p 0.5"),
        (LEAKED, "temperature 0.7, top_k 50, top_p 0.9"),
    ],
)
def test_values_are_said_as_people_set_them(values: SamplingValues, words: str) -> None:
    assert describe_values(values) == words


# From an engine into a trial.


def test_an_audit_survives_its_file_and_older_files_are_read() -> None:
    (record,) = trials([SamplingAudit(LEAK, SAMPLED, LEAKED, 3), SamplingAudit(LEAK, GREEDY, GREEDY, 4)])
    data = json.loads(encoding.dumps(record))
    assert encoding.from_json(TrialRecord, data).sampling_audit == record.sampling_audit is not None
    del data["sampling_audit"]
    assert encoding.from_json(TrialRecord, data).sampling_audit is None


def test_what_a_subject_does_not_tell_is_null() -> None:
    subject = FakeSubject(FakeClock())
    context = TrialContext(subject, subject.clock, StopSignal(), None, "natural")
    trial = Trial(trial=0, point=0, segment=0, pass_=0, mask=None, seed=0)
    record = measure_run(context, POINT, trial, 0, FakeSource((1, 1), 5), 2).record
    assert record.sampling_audit is None
    assert '"sampling_audit":null' in encoding.dumps(record)


def config(capture_params: str) -> EngineConfig:
    return tiny_config(optimizations=(("overlap", "off"), ("graphs", "captured"), ("capture_params", capture_params)))


PROMPTS = Prompts(3, SamplingParams(temperature=1.5, top_k=40, ignore_eos=True))
ASKED = SamplingValues(1.5, 40, 1.0)


def audit_of(found: Telemetry) -> Counter[tuple[str, SamplingValues, SamplingValues]]:
    rows: Counter[tuple[str, SamplingValues, SamplingValues]] = Counter()
    for entry in found.audit or ():
        rows[entry.variants["capture_params"], entry.asked, entry.effective] += entry.rows
    return rows


def serve(capture_params: str) -> tuple[list[SamplingAudit], dict[str, Any]]:
    """What an engine in this process tells of one loop, and of itself."""
    subject, _ = BuiltinSubject.build(config(capture_params), None, None)
    try:
        loop = run_loop(subject, PROMPTS)
        window = record_window(loop, subject.drain(), has_token_ids=True)
        assert window.audit is not None
        assert subject.drain().audit == [], "it is told once"
        return window.audit, dict(subject.describe())
    finally:
        subject.close()


def judged(capture_params: str) -> Gate:
    audit, about = serve(capture_params)
    (record,) = trials(audit)
    return gate_sampling([replace(record, subject={**record.subject, **about})])


def test_row_3_7_a_run_is_judged_by_what_its_engine_served() -> None:
    assert judged("real_params").status == "pass"
    leak = judged("leak")
    assert leak.status == "fail"
    assert "capture_params=leak, a known defect: asked for temperature 1.5, top_k 40, served" in leak.detail
    assert "temperature 0.7, top_k 50, top_p 0.9" in leak.detail
    assert "captured steps still have the override (leak)" in leak.detail
    argmax = judged("clear_after_warmup")
    assert argmax.status == "fail"
    assert "served no draw at all, the argmax" in argmax.detail
    assert "captured steps that should draw tokens recorded the argmax (clear_after_warmup)" in argmax.detail


def test_an_engine_in_another_process_tells_the_same() -> None:
    here = Counter({("leak", e.asked, e.effective): e.rows for e in serve("leak")[0]})
    with RemoteSubject.start(config("leak"), Settings(), with_ranges=False) as subject:
        subject.drain()
        run_loop(subject, PROMPTS)
        there = audit_of(subject.drain())
        about = subject.describe()
    assert there == here
    assert {served for _, _, served in there} == {ASKED, LEAKED}
    assert about["captured_steps"]["sets"]["leak"]["copies_with_override"] > 0


@pytest.mark.parametrize("tells", [True, False])
def test_another_commit_may_not_audit(tells: bool) -> None:
    subject = object.__new__(RemoteSubject)
    entry = {"variants": LEAK, "asked": vars(HOT), "effective": vars(LEAKED), "rows": 3}
    spans = {"kinds": [], "kind": [], "start_ns": [], "end_ns": []}
    answer = {"steps": StepTable.of([]).columns, "spans": spans, "busy": None, **({"audit": [entry]} if tells else {})}
    subject._tell = lambda operation: json.loads(json.dumps(answer)) if operation == "drain" else {}  # type: ignore[method-assign, assignment]
    assert subject.drain().audit == ([SamplingAudit(LEAK, HOT, LEAKED, 3)] if tells else None)
