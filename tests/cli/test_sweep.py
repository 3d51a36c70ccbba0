"""``specbench sweep`` as a user types it, on the tiny model."""

from __future__ import annotations

import csv
import json
import re
import signal
import statistics
from pathlib import Path

import pytest
from ab_commands import SCENARIO, num_lines, read, start, wait_for

from specbench import load_results
from specbench.cli.app import main
from specbench.scenario.loader import open_scenario
from specbench.scenario.plan_io import question_from_json
from specbench.scenario.questions import ask_ab, resolved_points
from specbench.scenario.sweep import expand_sweep

TWO = ["--set", "sweep.concurrency=1,2", "--set", "measure.repeats=2", "--out", "out"]


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario file in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


def test_every_point_is_measured_in_interleaved_rounds(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(scenario), *TWO]) == 0
    output, errors = capsys.readouterr()
    assert "2 points, 2 rounds: 4 trials" in errors
    assert errors.index("2 points") < errors.index("1/4 trials")
    assert "4/4 trials" in errors
    analysis = read("out", "analysis.json")
    assert analysis["kind"] == "sweep"
    assert [point["axes"] for point in analysis["points"]] == [{"workload.concurrency": 1}, {"workload.concurrency": 2}]
    assert all((point["trials"], point["requests"]) == (2, 16) for point in analysis["points"])
    trials = read("out", "trials.jsonl")
    assert [trial["segment"] for trial in trials] == [0, 0, 1, 1]
    assert {trial["point"] for trial in trials[:2]} == {0, 1}
    with Path("out/points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["concurrency"] for row in rows] == ["1", "2"]
    assert "concurrency" in output
    assert "concurrency" in Path("out/report.md").read_text()
    assert Path("out/report.html").exists()


def test_json_is_the_analysis_and_nothing_else(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(scenario), *TWO, "--json"]) == 0
    assert capsys.readouterr().out == Path("out/analysis.json").read_text()


def test_without_sweep_values_it_is_one_point(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(scenario), "--variant", "ngram", "--out", "out"]) == 0
    assert "1 point, 1 round: 1 trial" in capsys.readouterr().err
    (point,) = read("out", "analysis.json")["points"]
    assert (point["variant"], point["draft_len"]) == ("ngram", 3)


def last_count(errors: str) -> str:
    """The ``4/4`` of the last line that counts trials."""
    return re.findall(r"(\d+/\d+) trials", errors)[-1]


def test_trials_that_were_cut_or_failed_are_not_counted_as_measured(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", str(scenario), *TWO]) == 0
    path = Path("out/trials.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    cut = lines[2].replace('"status":"complete"', '"status":"interrupted"')
    assert cut != lines[2]
    path.write_text("".join([*lines[:2], cut]))
    for resumed in (1, 2):  # the cut attempt stays on disk beside the whole one
        capsys.readouterr()
        assert main(["sweep", "--resume", "out"]) == 0
        errors = capsys.readouterr().err
        assert f"4 trials, {2 if resumed == 1 else 4} of them measured before" in errors
        if resumed == 1:
            assert last_count(errors) == "4/4"
    assert num_lines(path) == 5


def break_points(monkeypatch: pytest.MonkeyPatch, broken: set[int]) -> None:
    """Engines of these points' concurrency fail in their first step."""
    from specbench.errors import EngineError
    from specbench.measure.subject import BuiltinSubject

    real = BuiltinSubject.advance

    def advance(subject: BuiltinSubject) -> None:
        if subject.engine.config.max_batch_size in broken:
            raise EngineError("the step went wrong")
        real(subject)

    monkeypatch.setattr(BuiltinSubject, "advance", advance)


def test_a_point_that_fails_is_recorded_and_the_rest_is_measured(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_points(monkeypatch, {2})
    assert main(["sweep", str(scenario), *TWO]) == 0
    output, errors = capsys.readouterr()
    assert "FAILED: workload.concurrency=2:" in errors
    assert "the step went wrong" in errors
    assert "1 of 2 points failed; the rest was measured" in errors
    good, bad = read("out", "analysis.json")["points"]
    assert (good["status"], good["trials"]) == ("complete", 2)
    assert bad["status"] == "failed"
    assert "the step went wrong" in bad["error"]
    assert "failed" in output
    monkeypatch.undo()
    monkeypatch.chdir(scenario.parent)
    capsys.readouterr()
    assert main(["sweep", "--resume", "out"]) == 0  # what failed is tried again
    errors = capsys.readouterr().err
    assert "4 trials, 2 of them measured before" in errors
    assert last_count(errors) == "4/4"
    assert {point["status"] for point in read("out", "analysis.json")["points"]} == {"complete"}


def test_all_points_failing_is_exit_code_4(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_points(monkeypatch, {1, 2})
    assert main(["sweep", str(scenario), *TWO]) == 4
    errors = capsys.readouterr().err
    assert "all 2 points failed" in errors
    assert errors.count("error: ") == 1


MAP = ["sweep.drafter=none,ngram", "sweep.draft_len=2,4", "sweep.concurrency=1,2", "measure.repeats=3"]
SMALL = ["workload.num_requests=2", "workload.osl=4"]
SETS = [word for change in (*MAP, *SMALL) for word in ("--set", change)]


def test_a_break_even_map_from_the_command_to_every_file(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.engine import build
    from specbench.engine.models.loading import load_model

    loads: list[str] = []
    monkeypatch.setattr(build, "load_model", lambda spec, *rest: loads.append(spec.source) or load_model(spec, *rest))
    assert main(["sweep", str(scenario), *SETS, "--out", "out"]) == 0
    output, errors = capsys.readouterr()
    assert loads == ["tiny"]  # six engines of four configurations, and the weights once
    assert "6 points, 3 rounds: 18 trials" in errors
    merged = "its K is 0, and drafter.draft_len is not varied for it: 6 points instead of 8"
    assert merged in errors
    assert any(merged in note for note in read("out", "question.json")["notes"])
    assert "concurrency=2 drafter=none draft_len=0: " in errors

    analysis = read("out", "analysis.json")
    points = [(point["concurrency"], point["drafter"], point["draft_len"]) for point in analysis["points"]]
    assert points == [(c, *found) for c in (1, 2) for found in (("none", 0), ("ngram", 2), ("ngram", 4))]
    found = analysis["break_even"]
    assert (found["missing"], found["confidence"]) == (None, 0.95)
    assert [(line["drafter"], line["draft_len"]) for line in found["lines"]] == [("ngram", 2), ("ngram", 4)]
    trials = read("out", "trials.jsonl")
    for line in found["lines"]:
        assert [cell["concurrency"] for cell in line["cells"]] == [1, 2]
        for cell in line["cells"]:
            speeds = [
                {trial["segment"]: trial["output_tokens_per_s"] for trial in trials if trial["point"] == point}
                for point in (cell["point"], cell["baseline_point"])
            ]
            ratios = [speeds[0][number] / speeds[1][number] for number in range(3)]
            assert cell["speedup_pct"] == pytest.approx(100 * (statistics.geometric_mean(ratios) - 1))
            assert cell["rounds"] == 3
            assert cell["acceptance_length"] >= 1.0

    rows = list(csv.DictReader(Path("out/points.csv").read_text().splitlines()))
    assert [row["row"] for row in rows] == ["point"] * 6 + ["break-even"] * 4
    for text in (output, Path("out/report.md").read_text(), Path("out/report.html").read_text()):
        assert "Speedup over no speculation, by concurrency" in text
        assert all(f"ngram, K = {line['draft_len']}: {line['answer']}" in text for line in found["lines"])
    assert "Speedup against concurrency" in Path("out/report.html").read_text()


def test_a_drafter_given_as_a_mapping_has_its_label_in_every_file(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapped = "sweep.drafter=none,ngram,{name: ngram, max_ngram: 1}"
    sets = [word for change in (mapped, *SMALL) for word in ("--set", change)]
    assert main(["sweep", str(scenario), *sets, "--out", "out"]) == 0
    label = "ngram {max_ngram: 1}"
    output, errors = capsys.readouterr()
    assert f"drafter={label}: " in errors
    assert [point["axes"]["drafter.name"] for point in read("out", "analysis.json")["points"]] == [
        "none",
        "ngram",
        label,
    ]
    results = load_results("out")
    assert list(results.points["drafter.name"]) == ["none", "ngram", label]
    assert list(results.break_even["drafter.name"]) == ["ngram", label]
    rows = list(csv.DictReader(Path("out/points.csv").read_text().splitlines()))
    assert [json.loads(row["axes"])["drafter.name"] for row in rows if row["row"] == "point"][-1] == label
    for text in (output, Path("out/report.md").read_text(), Path("out/report.html").read_text()):
        assert f"ngram, K = 4, drafter {label}: " in text.replace("\\", "")  # Markdown escapes the underscore
    asked = resolved_points(question_from_json(read("out", "question.json")))
    assert [point.engine.drafter.max_ngram for point in asked] == [3, 3, 1]
    again = expand_sweep(open_scenario("out/scenario.yaml"))
    assert [point.coordinates["drafter.name"] for point in again] == ["none", "ngram", label]


def test_a_sweep_without_plain_points_says_how_to_get_a_map(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--set", "sweep.concurrency=1,2", "--set", SMALL[0], "--set", SMALL[1]]
    assert main(["sweep", str(scenario), "--variant", "ngram", *few, "--out", "out"]) == 0
    wanted = "No break-even map: every point speculates. With the drafter none among them there is one"
    assert wanted in " ".join(capsys.readouterr().out.split())
    assert "--set sweep.drafter=none,ngram" in Path("out/report.md").read_text()


def test_check_says_how_many_points_none_makes(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(scenario), *SETS]) == 0
    assert "6 points instead of 8" in capsys.readouterr().out


def test_a_comparison_over_drafters_is_told_the_same(scenario: Path) -> None:
    question = ask_ab(
        scenario, [*MAP, "optimizations.overlap=off"], "sampling_params=refill", ["sampling_params=signature"]
    )
    assert len(question.comparisons) == 6
    assert any("6 points instead of 8" in note for note in question.notes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--executor", "ray"], ["--executor", "'ray'", "local"]),
        (["--variant", "nobody"], ["no such variant"]),
        (["--set", "sweep.concurrency=0,1"], ["sweep.concurrency"]),
        (["--set", "sweep.concurency=1,2"], ["concurency", "concurrency"]),
        (["--set", "sweep.grid={optimizations.overlap: [on, sideways]}"], ["overlap", "sideways"]),
        (["--set", "sweep.concurrency=1,2", "--variant", "workload.concurrency=4"], ["workload.concurrency"]),
        (["--out", "taken"], ["never overwrites"]),
        (["--resume", "nowhere"], ["no such folder"]),
        (["--resume", "taken"], ["question.json"]),
        (["--out", "a", "--resume", "b"], ["exclude each other"]),
    ],
    ids=" ".join,
)
def test_bad_flags_are_one_message(
    scenario: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    Path("taken").mkdir()
    Path("taken/x").touch()
    assert main(["sweep", str(scenario), *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.count("error: ") == 1
    assert all(word in errors for word in words), errors
    assert sorted(path.name for path in Path().iterdir()) == ["taken", "tiny.yaml"]


def test_without_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep"]) == 2
    assert "no scenario is given" in capsys.readouterr().err
    assert main(["sweep", "--resume", "nowhere", "--variant", "on"]) == 2
    assert "--variant needs the scenario" in capsys.readouterr().err


def test_another_sweep_is_not_resumed(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(scenario), *TWO]) == 0
    more = ["--set", "sweep.concurrency=1,2,4", "--set", "measure.repeats=2", "--resume", "out"]
    assert main(["sweep", str(scenario), *more]) == 2
    assert "another question: scenario.sweep.concurrency: [1, 2] -> [1, 2, 4]" in capsys.readouterr().err
    before = Path("out/trials.jsonl").read_bytes()
    assert main(["sweep", "--resume", "out"]) == 0
    assert Path("out/trials.jsonl").read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_stopped_at_any_moment_every_trial_counts_once(scenario: Path, number: signal.Signals) -> None:
    many = [item.replace("repeats=2", "repeats=6") for item in TWO]
    process = start("sweep", scenario, *many)
    wait_for(lambda: num_lines(Path("out/trials.jsonl")) >= 3, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130, errors
        assert "specbench sweep --resume out" in errors
        assert read("out", "analysis.json")["status"] == "interrupted"
    assert num_lines(Path("out/trials.jsonl")) < 12
    assert main(["sweep", "--resume", "out"]) == 0
    analysis = read("out", "analysis.json")
    assert analysis["status"] == "complete"
    assert [point["trials"] for point in analysis["points"]] == [6, 6]
