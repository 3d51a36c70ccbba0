"""``specbench ab`` as a user types it, on the tiny model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ab_commands import SCENARIO, num_lines, read, start, wait_for

from specbench.cli.app import main

FILES = {
    "scenario.yaml", "environment.json", "question.json", "plan.json", "trials.jsonl", "requests.jsonl", "looks.jsonl",
    "analysis.json", "report.md", "report.html",
}  # fmt: skip
WORDS = {"FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE", "FASTER BUT NEGLIGIBLE", "SLOWER BUT NEGLIGIBLE"}


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario file in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


def comparisons(folder: str = "out") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(folder, "analysis.json")["comparisons"]
    return found


def test_off_against_on_is_mirrored(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", str(scenario), "--baseline", "off", "--looks", "1"]) == 0
    output, errors = capsys.readouterr()
    (folder,) = Path("results").iterdir()
    assert {path.name for path in folder.iterdir()} == FILES
    (found,) = comparisons(str(folder))
    assert (found["baseline"], found["candidate"], found["design"]) == ("off", "on", "mirrored")
    assert found["verdict"] in WORDS
    assert found["n_units"] == 6
    assert found["tokens_identical"] is True
    toggles = ("block_staging", "input_prep", "sampling_params")
    assert sorted(difference["key"] for difference in found["differences"]) == [f"optimizations.{t}" for t in toggles]
    assert found["verdict"] in output
    assert f"results: {folder}" in output
    assert "units" in errors
    assert found["verdict"] in (folder / "report.md").read_text()
    assert found["verdict"] in (folder / "report.html").read_text()


def test_a_drafter_against_none_is_whole_runs(scenario: Path) -> None:
    assert main(["ab", str(scenario), "--baseline", "plain", "--candidate", "ngram", "--out", "out"]) == 0
    (found,) = comparisons()
    assert found["design"] == "runs"
    assert found["verdict"] in WORDS
    assert {"drafter.name", "drafter.draft_len"} <= {difference["key"] for difference in found["differences"]}
    trials = read("out", "trials.jsonl")
    assert {trial["arm"] for trial in trials} == {"A", "B"}
    assert {"".join(trial["arm"] for trial in trials[i : i + 4]) for i in range(0, len(trials), 4)} <= {"ABBA", "BAAB"}


def test_every_point_of_a_sweep_gets_a_verdict_and_all_an_effect(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = "sweep.concurrency=1,2"
    assert main(["ab", str(scenario), "--baseline", "off", "--set", change, "--out", "out"]) == 0
    assert [found["point"] for found in comparisons()] == [{"workload.concurrency": 1}, {"workload.concurrency": 2}]
    (pooled,) = read("out", "analysis.json")["pooled"]
    assert pooled["n_points"] == 2
    assert "concurrency" in capsys.readouterr().out


def test_each_adds_what_every_difference_does(scenario: Path) -> None:
    candidate = "sampling_params=signature,drafter=ngram"
    arms = ["--baseline", "sampling_params=refill", "--candidate", candidate]
    assert main(["ab", str(scenario), *arms, "--each", "--out", "out", "--set", "measure.max_units=2"]) == 0
    roles = [found["role"] for found in comparisons()]
    assert roles[0] == "candidate"
    assert roles.count("alone") == 2
    assert roles.count("all but") == 2


def test_json_is_the_analysis_and_nothing_else(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", str(scenario), "--baseline", "off", "--json", "--out", "out"]) == 0
    output, _ = capsys.readouterr()
    assert output == Path("out/analysis.json").read_text()
    assert json.loads(output)["kind"] == "ab"


def test_flags_win_over_the_scenario_and_are_in_the_plan(scenario: Path) -> None:
    flags = ["--margin", "3%", "--budget", "50s", "--looks", "1", "--set", "measure.margin=9%"]
    assert main(["ab", str(scenario), "--baseline", "off", *flags, "--out", "out"]) == 0
    settings = read("out", "plan.json")["settings"]
    assert (settings["margin"], settings["budget_s"], settings["num_looks"]) == (0.03, 50.0, 1)
    assert comparisons()[0]["margin_pct"] == pytest.approx(3.0)


def test_a_condition_that_is_met_is_exit_code_1(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A random model of a few steps: at 0.0001% nothing is shown to be equivalent."""
    flags = ["--margin", "0.0001%", "--set", "measure.max_units=2"]
    assert main(["ab", str(scenario), "--baseline", "off", *flags, "--fail-on", "not-equivalent", "--out", "out"]) == 1
    output, errors = capsys.readouterr()
    (found,) = comparisons()
    assert f"--fail-on not-equivalent: on is {found['verdict']}" in errors
    assert found["verdict"] in output


def test_invalid_beats_fail_on_and_every_verdict(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.measure import ab_analysis
    from specbench.records import Gate

    real = ab_analysis.analyze_ab

    def spoil(*arguments: Any) -> Any:
        analysis = real(*arguments)
        analysis.gates.append(Gate("tokens", "fail", "spoiled by a test"))
        return analysis

    monkeypatch.setattr(ab_analysis, "analyze_ab", spoil)
    flags = ["--fail-on", "slower,not-equivalent,inconclusive", "--out", "out"]
    assert main(["ab", str(scenario), "--baseline", "off", *flags]) == 3
    assert "INVALID: tokens: spoiled by a test" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["no baseline is given", "--baseline off"]),
        (["--baseline", "nobody"], ["--baseline nobody", "no such variant"]),
        (["--baseline", "off", "--candidate", "nobody"], ["--candidate nobody", "no such variant"]),
        (["--baseline", "off", "--margin", "0.5"], ["--margin", "0.5%"]),
        (["--baseline", "off", "--budget", "5"], ["--budget", "5m"]),
        (["--baseline", "off", "--processes", "0"], ["--processes", "from 1"]),
        (["--baseline", "off", "--looks", "0"], ["--looks", "from 1"]),
        (["--baseline", "off", "--looks", "two"], ["--looks", "integer"]),
        (["--baseline", "off", "--design", "paired"], ["--design", "mirrored"]),
        (["--baseline", "plain", "--candidate", "ngram", "--design", "mirrored"], ["mirrored", "drafter", "runs"]),
        (["--baseline", "off", "--pairs"], ["--pairs", "--each"]),
        (["--baseline", "off", "--fail-on", "slow"], ["--fail-on", "slower, not-equivalent, inconclusive"]),
        (["--baseline", "off", "--fail-on", "slower,"], ["--fail-on", "''"]),
        (["--baseline", "off", "--set", "workload.osl=none"], ["workload.osl"]),
        (["--baseline", "off", "--candidate", "workload.osl=4"], ["workload.osl"]),
        (["--baseline-ref", "no-such-commit"], ["--baseline-ref"]),
        (["--baseline", "off", "--out", "taken"], ["never overwrites"]),
        (["--baseline", "off", "--out", "a", "--resume", "b"], ["exclude each other"]),
        (["--baseline", "off", "--resume", "nowhere"], ["no such folder"]),
        (["--baseline", "off", "--resume", "taken"], ["question.json"]),
    ],
    ids=" ".join,
)
def test_bad_flags_are_one_message(
    scenario: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    Path("taken").mkdir()
    Path("taken/x").touch()
    assert main(["ab", str(scenario), *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("error: ") == 1
    assert all(word in errors for word in words), errors
    assert "Traceback" not in errors
    assert sorted(path.name for path in Path().iterdir()) == ["taken", "tiny.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["no scenario is given"]),
        (["--resume", "nowhere"], ["no such folder"]),
        (["--resume", "nowhere", "--margin", "1%", "--set", "a=b"], ["--set and --margin need the scenario"]),
    ],
)
def test_without_a_scenario(capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]) -> None:
    assert main(["ab", *arguments]) == 2
    errors = capsys.readouterr().err
    assert all(word in errors for word in words), errors


def test_a_wrong_input_takes_back_what_it_wrote(scenario: Path) -> None:
    Path("asked.jsonl").write_text("no JSON\n")
    text = SCENARIO.replace("kind: random_tokens", "kind: prompts, path: asked.jsonl").replace("isl: 16, ", "")
    scenario.write_text(text)
    for there in (False, True):
        if there:
            Path("out").mkdir()
        assert main(["ab", str(scenario), "--baseline", "off", "--out", "out"]) == 2
        assert Path("out").exists() is there
        assert not there or list(Path("out").iterdir()) == []


def forget_last(folder: str, count: int = 1) -> None:
    path = Path(folder, "trials.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-count]))


def units(folder: str) -> list[tuple[int, int]]:
    return [(unit["unit"], unit["segment"]) for unit in comparisons(folder)[0]["units"]]


def test_a_complete_one_is_resumed_for_nothing(scenario: Path) -> None:
    assert main(["ab", str(scenario), "--baseline", "off", "--out", "out"]) == 0
    before = Path("out/trials.jsonl").read_bytes()
    analysis = read("out", "analysis.json")
    assert main(["ab", "--resume", "out"]) == 0
    assert main(["ab", str(scenario), "--baseline", "off", "--resume", "out"]) == 0
    assert Path("out/trials.jsonl").read_bytes() == before
    assert read("out", "analysis.json")["comparisons"] == analysis["comparisons"]


def test_a_cut_block_is_measured_again_as_a_whole(scenario: Path) -> None:
    flags = ["--looks", "1", "--out", "out"]
    assert main(["ab", str(scenario), "--baseline", "off", *flags]) == 0
    whole = units("out")
    forget_last("out")
    Path("out/looks.jsonl").unlink()
    assert main(["ab", "--resume", "out"]) == 0
    trials = read("out", "trials.jsonl")
    assert [(trial["trial"], trial["attempt"]) for trial in trials[-3:]] == [(4, 0), (4, 1), (5, 1)]
    assert units("out") == whole


def test_another_question_is_not_resumed_and_what_differs_is_named(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["ab", str(scenario), "--baseline", "off"]
    assert main([*asked, "--out", "out"]) == 0
    for changed, words in (
        (["--margin", "1%"], ["scenario.measure.margin: 0.5% -> 1%"]),
        (["--set", "workload.osl=17"], ["scenario.workload.osl: 16 -> 17"]),
        (["--candidate", "ngram"], ["variant", "on", "ngram"]),
    ):
        capsys.readouterr()
        assert main([*asked, *changed, "--resume", "out"]) == 2
        errors = capsys.readouterr().err
        assert all(word in errors for word in ["another question", *words]), errors
    assert main(["sweep", "--resume", "out"]) == 2
    assert "specbench ab --resume out" in capsys.readouterr().err


def test_a_question_that_was_edited_is_not_resumed(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", str(scenario), "--baseline", "off", "--out", "out"]) == 0
    path = Path("out/question.json")
    path.write_text(path.read_text().replace('"margin": 0.005', '"margin": 0.05'))
    assert main(["ab", "--resume", "out"]) == 2
    assert "was changed after the command began" in capsys.readouterr().err


def test_another_machine_is_not_resumed(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", str(scenario), "--baseline", "off", "--out", "out"]) == 0
    path = Path("out/environment.json")
    path.write_text(path.read_text().replace('"python": "', '"python": "2.7 or '))
    assert main(["ab", "--resume", "out"]) == 2
    assert "began elsewhere (python: 2.7 or" in capsys.readouterr().err


LONG = ["--baseline", "off", "--looks", "1", "--set", "measure.max_units=600", "--out", "out"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interruption_keeps_what_was_measured_and_is_resumable(scenario: Path, number: signal.Signals) -> None:
    process = start("ab", scenario, *LONG)
    wait_for(lambda: num_lines(Path("out/trials.jsonl")) >= 5, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "specbench ab --resume out" in errors
    assert "Traceback" not in errors
    analysis = read("out", "analysis.json")
    assert analysis["status"] == "interrupted"
    assert 2 <= analysis["comparisons"][0]["n_units"] < 600
    assert Path("out/report.md").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_stopped_at_any_moment_it_is_finished_to_the_same_plan(scenario: Path, number: signal.Signals) -> None:
    few = [item.replace("600", "12") for item in LONG]
    process = start("ab", scenario, *few)
    wait_for(lambda: num_lines(Path("out/trials.jsonl")) >= 3, process)
    process.send_signal(number)
    process.communicate(timeout=60)
    plan = Path("out/plan.json").read_bytes()
    if number == signal.SIGKILL:
        with Path("out/trials.jsonl").open("a") as file:
            file.write('{"trial": 5, "poi')  # what a kill in the middle of a write leaves
    assert num_lines(Path("out/trials.jsonl")) < 12
    assert main(["ab", "--resume", "out"]) == 0
    assert Path("out/plan.json").read_bytes() == plan
    (found,) = comparisons()
    assert found["n_units"] == 12
    assert len(set(units("out"))) == 12
    hashes = {}
    for trial in read("out", "trials.jsonl"):
        if trial["status"] == "complete":
            hashes.setdefault(trial["segment"], set()).add(trial["tokens_sha256"])
    assert len(hashes) == 6
    assert {len(found) for found in hashes.values()} == {1}


def test_stopped_before_the_first_trial_nothing_is_concluded(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.measure.subject import BuiltinSubject

    real, steps = BuiltinSubject.advance, []

    def advance(subject: BuiltinSubject) -> Any:
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return real(subject)

    monkeypatch.setattr(BuiltinSubject, "advance", advance)
    assert main(["ab", str(scenario), "--baseline", "off", "--looks", "1", "--out", "out"]) == 130
    output, errors = capsys.readouterr()
    assert "nothing was measured yet" in errors
    assert output == ""
    monkeypatch.undo()
    os.chdir(scenario.parent)
    assert main(["ab", "--resume", "out"]) == 0
    assert comparisons()[0]["n_units"] == 6


def test_content_is_saved_only_when_asked(scenario: Path) -> None:
    asked = ["ab", str(scenario), "--baseline", "plain", "--candidate", "ngram", "--set", "measure.max_units=2"]
    assert main([*asked, "--out", "told", "--save-outputs", "--save-prompts"]) == 0
    assert main([*asked, "--out", "quiet"]) == 0
    told, quiet = (read(folder, "requests.jsonl")[0] for folder in ("told", "quiet"))
    assert (len(told["output_token_ids"]), len(told["prompt_token_ids"])) == (16, 16)
    assert (quiet["output_token_ids"], quiet["prompt_token_ids"]) == (None, None)


@pytest.mark.slow
def test_fresh_processes_share_the_plan(scenario: Path) -> None:
    asked = ["ab", str(scenario), "--baseline", "off", "--processes", "4", "--set", "measure.max_units=8"]
    process = start(*asked, "--out", "out", "--json")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    (found,) = json.loads(output)["comparisons"]
    assert (found["n_processes"], found["n_units"]) == (4, 8)
    assert {trial["process"] for trial in read("out", "trials.jsonl")} == {0, 1, 2, 3}
    assert "process 4 of 4" in errors
    assert "4 fresh processes" in found["scope"]


@pytest.mark.slow
def test_an_interruption_reaches_a_fresh_process(scenario: Path) -> None:
    process = start("ab", scenario, *LONG, "--processes", "2")
    wait_for(lambda: num_lines(Path("out/trials.jsonl")) >= 3, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.count("error: ") == 1
    assert read("out", "analysis.json")["status"] == "interrupted"


def test_a_fresh_process_that_is_interrupted_while_it_starts_up_ends_as_any_other(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specbench.cli import ab_process
    from specbench.errors import InterruptedRunError
    from specbench.measure import fresh_process

    def run_fresh(target: str, arguments: list[str], **_: Any) -> str:
        if arguments[1] == "0":
            return ab_process.main(*arguments)
        raise InterruptedRunError("the process was interrupted", where=target)

    monkeypatch.setattr(fresh_process, "run_fresh", run_fresh)
    asked = ["ab", str(scenario), "--baseline", "off", "--processes", "4", "--out", "out"]
    assert main([*asked, "--set", "measure.max_units=8"]) == 130
    output, errors = capsys.readouterr()
    assert errors.count("error: ") == 1
    assert "what was measured is kept in out" in errors
    assert "specbench ab --resume out" in errors
    assert read("out", "analysis.json")["status"] == "interrupted"
    assert comparisons()[0]["n_units"] == 2
    assert "INCONCLUSIVE" in output


@pytest.mark.slow
def test_an_interruption_reaches_a_fresh_process_that_still_starts_up(scenario: Path) -> None:
    process = start("ab", scenario, *LONG, "--processes", "2")
    assert process.stderr is not None
    assert any("process 1 of 2" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.count("error: ") == 1
    assert "interrupted; nothing was measured yet in out" in errors
    assert "specbench ab --resume out" in errors
