"""From a scenario file and flags to the question that ab, sweep and selftest ask."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specbench import encoding
from specbench.errors import InputError, ScenarioError
from specbench.scenario.loader import open_scenario
from specbench.scenario.plan_io import question_from_json
from specbench.scenario.questions import (
    Calibration,
    ask_ab,
    ask_selftest,
    ask_sweep,
    count_points,
    plan_question,
    resolved_points,
)
from specbench.scenario.resolve import resolve
from specbench.scenario.schema import Scenario

Write = Callable[[str], Path]
SCENARIOS = Path(__file__).parents[2] / "scenarios"
TOGGLES = {f"optimizations.{name}" for name in ("sampling_params", "block_staging", "input_prep")}
"""Those that off and on switch where no model has more."""

TEXT = """
model: tiny
drafter: {name: ngram, draft_len: 3, min_ngram: 2}
workload: {kind: random_tokens, num_requests: 4, isl: 16, osl: 8, concurrency: 2}
sampling: {temperature: 1, seed: 5}
variants:
  plain:
    drafter: none
  wide:
    drafter.draft_len: 6
    overlap: on
"""


@pytest.fixture
def path(write: Write) -> Path:
    """A scenario with a drafter and two variants."""
    return write(TEXT)


def test_off_against_on_is_the_toggles_alone_and_mirrored(path: Path) -> None:
    question = ask_ab(path)
    (comparison,) = question.comparisons
    assert [point.variant for point in question.points] == ["off", "on"]
    assert sorted(difference.key for difference in comparison.differences) == sorted(TOGGLES)
    assert (comparison.baseline, comparison.candidate, comparison.role) == (0, 1, "candidate")
    assert (comparison.design, comparison.exactness) == ("mirrored", "bit-identical")


def test_plain_against_the_scenario_is_the_drafter_alone(path: Path) -> None:
    (comparison,) = ask_ab(path, baseline="plain").comparisons
    changed = {difference.key: (difference.baseline, difference.candidate) for difference in comparison.differences}
    assert changed == {"drafter.name": ("none", "ngram"), "drafter.draft_len": (0, 3)}
    assert (comparison.design, comparison.exactness) == ("runs", "numerically-equivalent")


@pytest.mark.parametrize(
    ("name", "baseline", "design", "keys"),
    [
        ("quickstart", "off", "mirrored", {"optimizations.sampling_params"}),
        ("ngram", "plain", "runs", {"drafter.name", "drafter.draft_len"}),
    ],
)
def test_the_ready_scenarios_compare_what_their_comments_say(
    name: str, baseline: str, design: str, keys: set[str]
) -> None:
    question = ask_ab(SCENARIOS / f"{name}.yaml", baseline=baseline)
    (comparison,) = question.comparisons
    assert (comparison.design, {difference.key for difference in comparison.differences}) == (design, keys)
    assert f"specbench ab scenarios/{name}.yaml --baseline {baseline}\n" in (SCENARIOS / f"{name}.yaml").read_text()


def test_every_candidate_meets_the_one_baseline(path: Path) -> None:
    question = ask_ab(path, baseline="plain", candidates=["on", "wide", "drafter.draft_len=1"])
    assert [point.variant for point in question.points] == ["plain", "on", "wide", "drafter.draft_len=1"]
    assert [(c.index, c.baseline, c.candidate) for c in question.comparisons] == [(0, 0, 1), (1, 0, 2), (2, 0, 3)]
    assert {c.role for c in question.comparisons} == {"candidate"}
    assert question.points[2].axes == {"concurrency": 2, "draft_len": 6, "isl": 16, "osl": 8}


def test_settings_come_from_measure_in_numbers(path: Path) -> None:
    changes = [
        "measure.margin=1.5%", "measure.confidence=99%", "measure.budget=1m30s", "measure.looks=3",
        "measure.anytime=true", "measure.processes=4", "measure.period_steps=16", "measure.guard_steps=2",
        "measure.quads_per_segment=2", "measure.segment_requests=7", "measure.max_units=40", "measure.seed=9",
    ]  # fmt: skip
    settings = ask_ab(path, changes).settings
    assert settings is not None
    assert (settings.margin, settings.confidence, settings.budget_s, settings.num_looks) == (0.015, 0.99, 90.0, 3)
    assert (settings.anytime, settings.processes, settings.period_steps, settings.guard_steps) == (True, 4, 16, 2)
    assert (settings.quads_per_segment, settings.segment_requests, settings.max_units) == (2, 7, 40)
    assert (settings.seed, settings.stop_early) == (9, True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], (2, 12)),
        (["optimizations.overlap=on"], (8, 3)),
        (["measure.guard_steps=4"], (2, 6)),
        (["measure.period_steps=100"], (100, 1)),
        (["measure.period_steps=5", "measure.quads_per_segment=3"], (5, 3)),
    ],
)
def test_a_period_is_short_where_no_step_overlaps(path: Path, changes: list[str], expected: tuple[int, int]) -> None:
    settings = ask_ab(path, changes).settings
    assert settings is not None
    assert (settings.period_steps, settings.quads_per_segment) == expected
    written = ask_ab(path, changes).scenario["measure"]
    assert (written["period_steps"], written["quads_per_segment"]) == expected
    assert ask_selftest(path, changes).settings == replace(settings, stop_early=False)


def test_one_arm_that_overlaps_makes_periods_long(path: Path) -> None:
    settings = ask_ab(path, candidates=["plain", "overlap=on"]).settings
    assert settings is not None
    assert settings.period_steps == 8


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("measure.margin=0.005", "found 0.005; allowed: a percentage above 0% and below 100%, such as 0.5%"),
        ("measure.margin=0%", "found '0%' (text); allowed: a percentage above 0%"),
        ("measure.confidence=5%", "found '5%' (text); allowed: a percentage above 50% and below 100%, such as 95%"),
        ("measure.budget=90", "found 90; allowed: a duration such as"),
        ("measure.budget=0s", "found '0s' (text); allowed: a duration such as"),
        ("measure.design=quads", "found 'quads' (text); allowed: auto, mirrored, runs"),
        ("measure.processes=0", "found 0; allowed: 1 or more"),
        ("measure.max_units=1", "found 1; allowed: 2 or more"),
        ("measure.loops=1", "no such key in measure"),
    ],
)
def test_settings_that_cannot_be_are_refused(path: Path, change: str, what: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        ask_ab(path, [change])
    assert caught.value.what.startswith(what)
    assert caught.value.where == f"--set {change.partition('=')[0]}"


@pytest.mark.parametrize(
    ("baseline", "candidates", "what", "where"),
    [
        ("off", ["off"], "nothing differs between --baseline off and --candidate off", "specbench ab"),
        ("off", ["sampling_params=refill,block_staging=full,input_prep=rebuild"],
         "nothing differs between --baseline off", "specbench ab"),
        ("plain", ["on", "drafter.draft_len=3"], "nothing differs between --candidate on and", "specbench ab"),
        ("off", [], "there is no candidate", "--candidate"),
        ("of", ["on"], "no such variant", "--baseline of"),
        ("off", ["o"], "no such variant", "--candidate o"),
        ("off", ["measure.margin=1%"], "sets measure.margin, which says how both", "--candidate measure.margin"),
        ("off", ["name=x"], "a variant cannot set name", "--candidate name"),
        ("plain", ["workload.osl=9"], "--baseline plain and --candidate workload.osl=9 are not asked for the same",
         "--candidate workload.osl"),
        ("sampling.seed=1", ["on"], "--baseline sampling.seed=1 and --candidate on are not asked for the same work",
         "--baseline sampling.seed"),
        ("off", ["process.worktree=/none"], "no such folder: '/none'", "--candidate process.worktree"),
    ],
)  # fmt: skip
def test_arms_that_cannot_be_compared_are_refused(
    path: Path, baseline: str, candidates: list[str], what: str, where: str
) -> None:
    with pytest.raises(InputError) as caught:
        ask_ab(path, [], baseline, candidates)
    assert caught.value.what.startswith(what)
    assert caught.value.where == where


def test_mirrored_where_it_cannot_hold_is_refused(path: Path) -> None:
    with pytest.raises(ScenarioError, match="mirrored periods cannot compare these arms: drafter"):
        ask_ab(path, ["measure.design=mirrored"], "plain")
    assert ask_ab(path, ["measure.design=runs"]).comparisons[0].design == "runs"


def test_a_change_that_only_one_arm_heeds_stands_and_one_that_none_does_is_refused(path: Path) -> None:
    question = ask_ab(path, ["drafter.draft_len=5"], "plain")
    assert question.points[1].axes["draft_len"] == 5
    with pytest.raises(ScenarioError, match=r"has no effect: every arm sets optimizations.sampling_params") as caught:
        ask_ab(path, ["optimizations.sampling_params=refill"], "sampling_params=signature", ["on"])
    assert caught.value.where == "--set optimizations.sampling_params"
    merged = ask_ab(path, ["optimizations.input_prep=rebuild"], "sampling_params=refill", ["sampling_params=signature"])
    assert {point.scenario["optimizations"]["input_prep"] for point in merged.points if point.scenario} == {"rebuild"}


def test_a_comparison_at_every_point_of_the_sweep(path: Path) -> None:
    question = ask_ab(path, ["sweep.concurrency=1,4", "sweep.osl=8,12"])
    assert len(question.comparisons) == 4
    assert len(question.points) == 8
    last = question.points[-1]
    assert last.coordinates == {"workload.concurrency": 4, "workload.osl": 12}
    assert last.scenario is not None
    assert last.scenario["engine"]["max_batch_size"] == 4
    assert not {"sweep", "variants", "study"} & set(last.scenario)
    for comparison in question.comparisons:
        arms = [question.points[comparison.baseline], question.points[comparison.candidate]]
        assert arms[0].coordinates == arms[1].coordinates
        assert [arm.variant for arm in arms] == ["off", "on"]


@pytest.mark.parametrize("swept", ["draft_len=1,2", "grid.variant=wide,plain"])
def test_an_arm_that_sets_what_is_swept_is_refused(path: Path, swept: str) -> None:
    with pytest.raises(ScenarioError, match=r"--baseline plain sets drafter, which the sweep varies") as caught:
        ask_ab(path, [f"sweep.{swept}"], "plain")
    assert caught.value.where == f"{path}:8 (variant 'plain')"


def test_each_switches_every_part_alone_and_leaves_it_out(path: Path) -> None:
    question = ask_ab(path, baseline="plain", candidates=["wide"], each=True)
    roles = [
        (c.role, question.points[c.baseline].variant, question.points[c.candidate].variant)
        for c in question.comparisons
    ]
    assert roles == [
        ("candidate", "plain", "wide"),
        ("alone", "plain", "plain + overlap"),
        ("alone", "plain", "plain + drafter"),
        ("all but", "plain + drafter", "wide"),
        ("all but", "plain + overlap", "wide"),
    ]
    assert len(question.points) == 4, "with two parts, all but one is the other alone"
    assert [d.key for d in question.comparisons[1].differences] == ["optimizations.overlap"]


def test_pairs_are_of_three_parts_or_more(path: Path) -> None:
    candidate = ["sampling_params=signature,overlap=on,engine.max_num_tokens=99"]
    question = ask_ab(path, [], "sampling_params=refill", candidate, each=True, pairs=True)
    pairs = [question.points[c.candidate].variant for c in question.comparisons if c.role == "pair"]
    assert pairs == [
        "sampling_params=refill + overlap + sampling_params",
        "sampling_params=refill + overlap + engine.max_num_tokens",
        "sampling_params=refill + sampling_params + engine.max_num_tokens",
    ]
    assert sum(c.role == "alone" for c in question.comparisons) == 3
    two = ask_ab(path, [], "plain", ["wide"], each=True, pairs=True)
    assert not [c for c in two.comparisons if c.role == "pair"]


def test_each_with_one_part_adds_nothing_and_says_so(write: Write) -> None:
    path = write(f"study: [sampling_params]\n{TEXT}")
    question = ask_ab(path, each=True)
    assert len(question.comparisons) == 1
    assert question.notes == ("--each adds nothing to on: it differs from off in sampling_params alone",)
    assert ask_ab(path).notes == ()


def test_parts_that_cannot_stand_alone_go_together(write: Write) -> None:
    path = write(
        TEXT + "  accepted:\n    acceptance: {mode: forced, length: 2.4}\n    drafter: {name: ngram, draft_len: 3}\n"
        "    overlap: on\n"
    )
    question = ask_ab(path, [], "plain", ["accepted"], each=True)
    alone = [question.points[c.candidate].variant for c in question.comparisons if c.role == "alone"]
    assert alone == ["plain + overlap", "plain + drafter, acceptance"]


def test_a_question_is_the_same_wherever_it_is_asked_and_read(path: Path) -> None:
    table = "drafter={name: ngram, runtime_draft_len: {4: 3, 16: 1}}"
    changes = ["sweep.isl=[[4, 8], 16]", "sampling.stop_token_ids=3,4", table]
    question = ask_ab(path, changes, each=True)
    assert question.sha256 == ask_ab(path, changes, each=True).sha256
    read = question_from_json(json.loads(encoding.dumps(question)))
    assert (read, read.sha256) == (question, question.sha256)
    for point, resolved in zip(read.points, resolved_points(read), strict=True):
        assert resolved.scenario.drafter.runtime_draft_len == {4: 3, 16: 1}
        assert resolved.scenario.workload.isl == ((4, 8) if point.coordinates["workload.isl"] == [4, 8] else 16)
        assert resolved == resolve(resolved.scenario)


def test_points_of_a_plan_resolve_as_asked(path: Path) -> None:
    question = ask_ab(path, baseline="plain")
    plan = plan_question(question, Calibration((1.0,), segment_requests=(4,)))
    engines = [resolved.engine for resolved in resolved_points(plan)]
    assert [engine.drafter.name for engine in engines] == ["none", "ngram"]
    assert engines[0].max_batch_size == 2


def test_files_are_absolute_and_secrets_masked(write: Write, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "hello"}\n')
    path = write(
        "model: tiny\nworkload: {kind: prompts, path: p.jsonl, osl: 4,"
        " system_prompt: 'use sk-abcdefghijklmnopqrstuv'}\nengine: {max_seq_len: 64}\n"
    )
    question = ask_ab(path)
    text = encoding.dumps(question)
    assert "sk-abc" not in text
    for scenario in (question.scenario, *(point.scenario for point in question.points)):
        assert scenario is not None
        assert scenario["workload"]["path"] == str(tmp_path / "p.jsonl")
        assert scenario["workload"]["system_prompt"] == "use ***"
    assert len(question.notes) == 1
    assert question.notes[0].startswith("workload.system_prompt: what looks like a secret")


def test_variables_in_which_arms_differ_are_named_with_their_values(write: Write) -> None:
    path = write(TEXT + "  other:\n    process: {env: {THREADS: 4}}\n")
    question = ask_ab(path, baseline="on", candidates=["process.env.OWN='a b',process.env.TWO=2", "other"])
    assert {c.design for c in question.comparisons} == {"runs"}
    found = [(d.key, d.baseline, d.candidate) for d in question.comparisons[0].differences]
    assert found == [("process.env.OWN", None, "a b"), ("process.env.TWO", None, "2")], "both arms have a process"
    process = resolved_points(question)[2].scenario.process
    assert process is not None
    assert process.env == {"THREADS": "4"}


@pytest.mark.parametrize("variable", ["HF_TOKEN: hush", "OTHER: sk-0123456789abcdefghij"])
def test_a_variable_that_looks_like_a_secret_is_refused_and_not_repeated(write: Write, variable: str) -> None:
    path = write(TEXT + f"  other:\n    process: {{env: {{{variable}}}}}\n")
    with pytest.raises(ScenarioError, match="looks like a secret") as caught:
        ask_ab(path, baseline="on", candidates=["other"])
    assert variable.partition(": ")[2] not in str(caught.value)


def test_an_arm_of_another_build(path: Path, tmp_path: Path) -> None:
    (tmp_path / "tree" / "specbench").mkdir(parents=True)
    relative = os.path.relpath(tmp_path / "tree")
    question = ask_ab(path, baseline=f"process.worktree={relative},process.python={sys.executable}")
    point = question.points[0]
    assert point.scenario is not None
    assert point.scenario["process"] == {
        "python": os.path.abspath(sys.executable), "env": {}, "worktree": str(tmp_path / "tree"),
    }  # fmt: skip
    (comparison,) = question.comparisons
    assert {d.key for d in comparison.differences} == {"process.python", "process.worktree"}
    assert comparison.exactness == "numerically-equivalent"


def test_replay_needs_no_source_where_a_baseline_records(path: Path, tmp_path: Path) -> None:
    question = ask_ab(path, ["acceptance=replay"], "plain")
    assert [r.scenario.acceptance.source for r in resolved_points(question)] == [None, None]
    (tmp_path / "requests.jsonl").write_text("")
    recorded = ask_sweep(path, [f"acceptance={{mode: replay, source: {tmp_path}}}"])
    assert resolved_points(recorded)[0].scenario.acceptance.source == str(tmp_path)
    with pytest.raises(ScenarioError, match="is missing: replayed acceptance needs a run") as caught:
        ask_sweep(path, ["acceptance=replay"])
    assert caught.value.hint == "--set acceptance.source=results/FOLDER"


def test_a_sweep_has_its_points_and_rounds(path: Path) -> None:
    question = ask_sweep(path, ["sweep.concurrency=1,2,4", "sweep.grid.variant=plain,wide", "measure.repeats=2"])
    assert [(point.variant, point.axes["concurrency"], point.axes["draft_len"]) for point in question.points] == [
        (variant, concurrency, draft_len)
        for concurrency in (1, 2, 4)
        for variant, draft_len in (("plain", 0), ("wide", 6))
    ]
    assert (question.kind, question.repeats, question.settings, question.comparisons) == ("sweep", 2, None, ())
    assert question.warmup_requests == 4
    assert len(plan_question(question, Calibration(())).trials) == 12
    assert count_points(open_scenario(path, ["sweep.concurrency=1,2,4"])) == 3


def test_a_sweep_may_have_no_axis_or_a_variant(path: Path) -> None:
    assert [point.variant for point in ask_sweep(path).points] == ["base"]
    question = ask_sweep(path, ["sweep.osl=4,8"], "plain")
    assert [(point.variant, point.axes["draft_len"]) for point in question.points] == [("plain", 0)] * 2
    with pytest.raises(ScenarioError, match="'plain' sets drafter, which the sweep varies"):
        ask_sweep(path, ["sweep.draft_len=1,2"], "plain")


def test_a_point_that_cannot_be_is_named(path: Path) -> None:
    with pytest.raises(InputError, match=r"at workload.concurrency=1, workload.osl=999999: isl 16") as caught:
        ask_sweep(path, ["sweep.concurrency=1,2", "sweep.osl=8,999999"])
    assert caught.value.where == "--set sweep.osl (sweep.osl: 999999): workload.osl"


@pytest.mark.parametrize("ask", [ask_sweep])
def test_one_arm_has_no_process_of_its_own(path: Path, ask: Callable[..., object]) -> None:
    with pytest.raises(ScenarioError, match="is for the arms of `specbench ab`"):
        ask(path, ["process={}"])


def test_selftest_compares_on_with_itself_and_finds_a_known_delay(path: Path) -> None:
    question = ask_selftest(path, ["sweep.osl=4,8"], num_aa=3)
    assert [c.role for c in question.comparisons] == ["A/A", "A/A", "A/A", "delay", "swapped"]
    assert [point.variant for point in question.points] == ["on"]
    assert all((c.baseline, c.candidate, c.differences) == (0, 0, ()) for c in question.comparisons)
    assert {(c.design, c.exactness) for c in question.comparisons} == {("mirrored", "bit-identical")}
    assert question.settings is not None
    assert not question.settings.stop_early
    plan = plan_question(question, Calibration((1.0,) * 5, step_us=(2000.0,) * 5))
    assert plan.comparisons[2].injected is None
    assert plan.comparisons[3].injected == {"B": {"kind": "delay", "us": 200.0, "lane": "both"}}
    assert plan.comparisons[4].injected == {"A": {"kind": "delay", "us": 200.0, "lane": "both"}}


def test_warm_up_is_the_most_that_a_point_asks_for(path: Path) -> None:
    assert ask_ab(path, ["sweep.concurrency=1,6"]).warmup_requests == 6
    assert ask_ab(path, ["sweep.concurrency=1,6", "measure.warmup_requests=3"]).warmup_requests == 3


def test_process_is_null_by_default() -> None:
    assert Scenario.model_validate({}).process is None
