"""``specbench run`` as a user types it, on the tiny model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench.cli.app import main
from specbench.engine.drafters import draft_identity
from specbench.engine.drafters.draft_identity import DraftIdentity
from specbench.measure import results_folder

SCENARIO = """
name: tiny
model: random:tiny
drafter: {name: ngram, draft_len: 3}
workload: {kind: random_tokens, num_requests: 6, isl: 24, osl: 16, concurrency: 2}
engine: {device: cpu, dtype: float32, num_threads: 1}
measure: {warmup_requests: 1}
"""
FILES = {
    "scenario.yaml", "environment.json", "plan.json", "trials.jsonl", "requests.jsonl", "analysis.json", "report.md",
}  # fmt: skip


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario file in a folder of its own, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "specbench", "run", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(specbench.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **pipes, **options)


def read(folder: Path, name: str) -> Any:
    text = (folder / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)


def test_tables_folder_and_python(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(scenario)]) == 0
    output, errors = capsys.readouterr()
    (folder,) = Path("results").iterdir()
    assert {path.name for path in folder.iterdir()} == FILES
    for heading in ("Throughput [tok/s]", "Latency [ms]", "Acceptance by draft position", "Time per step", "Gates"):
        assert heading in output
    assert "synthetic input" in output
    assert f"results: {folder}" in output
    assert "warm-up: 1 requests" in errors
    found = specbench.load_results(folder)
    point = found.analysis.points[0]
    assert (point.requests, point.committed_tokens, point.status) == (6, 96, "complete")
    parts = (point.device_ms or 0) + (point.host_exposed_ms or 0) + (point.other_idle_ms or 0)
    assert parts == pytest.approx(point.step_ms)
    assert (point.device_ms or 0) > 0
    assert {"schedule", "prepare_inputs", "launch", "device_step"} <= set(point.ranges)
    assert {gate.name: gate.status for gate in found.analysis.gates}["token counts"] == "pass"
    assert all(found.requests["output_text"].isna())


def test_json_is_the_analysis_and_nothing_else(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(scenario), "--json", "--out", "here"]) == 0
    output, _ = capsys.readouterr()
    assert output == Path("here/analysis.json").read_text()
    assert json.loads(output)["points"][0]["requests"] == 6


def test_equal_runs_give_equal_tokens_and_overlap_changes_none(scenario: Path) -> None:
    for number, extra in enumerate(([], [], ["--set", "optimizations.overlap=on"], ["--set", "drafter=none"])):
        assert main(["run", str(scenario), "--out", str(number), *extra]) == 0
    hashes = {read(Path(str(number)), "analysis.json")["points"][0]["tokens_sha256"] for number in range(4)}
    assert len(hashes) == 1


def test_content_is_saved_only_when_asked(scenario: Path) -> None:
    assert main(["run", str(scenario), "--out", "told", "--save-outputs", "--save-prompts"]) == 0
    request = read(Path("told"), "requests.jsonl")[0]
    assert (len(request["output_token_ids"]), len(request["prompt_token_ids"])) == (16, 24)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "taken"], "never overwrites"),
        (["--out", "file/below"], "results folder cannot be written"),
        (["--resume", "nowhere"], "there is no such folder"),
        (["--resume", "taken"], "plan.json"),
        (["--out", "a", "--resume", "b"], "exclude each other"),
        (["--steps", "9-3"], "--steps"),
        (["--profile", "perf"], "--profile"),
        (["--variant", "nobody"], "no such variant"),
    ],
)
def test_bad_flags_are_one_message(
    scenario: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("taken").mkdir()
    Path("taken/x").touch()
    Path("file").touch()
    assert main(["run", str(scenario), *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert message in errors
    assert "Traceback" not in errors


def test_no_scenario_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert "no scenario is given" in capsys.readouterr().err


def test_a_prompt_that_cannot_fit_is_found_before_measuring(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("long.jsonl").write_text(json.dumps({"prompt": "word " * 100}) + "\n")
    text = SCENARIO.replace("kind: random_tokens", "kind: prompts, path: long.jsonl").replace("isl: 24, ", "")
    scenario.write_text(text)
    assert main(["run", str(scenario), "--set", "engine.max_seq_len=64", "--out", "run"]) == 2
    assert "--set engine.max_seq_len=" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_later_turn_that_does_not_fit_makes_the_run_invalid(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(SCENARIO.replace("kind: random_tokens", "kind: chat80").replace("isl: 24, ", ""))
    with_room = ["run", str(scenario), "--set", "workload.num_requests=2", "--set", "workload.osl=8"]
    assert main([*with_room, "--out", "fits"]) == 0
    turns = [request["prompt_tokens"] for request in read(Path("fits"), "requests.jsonl")]
    assert len(turns) == 2
    capsys.readouterr()
    assert main([*with_room, "--set", f"engine.max_seq_len={turns[0] + 9}", "--out", "short"]) == 3
    output, errors = capsys.readouterr()
    assert "INVALID: requests: 1 of 2 failed" in output
    assert "INVALID" in errors
    assert read(Path("short"), "analysis.json")["points"][0]["failed_requests"] == 1


def test_nan_logits_are_an_engine_error(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench.engine.models.random_weights import RandomSource

    real = RandomSource.read
    monkeypatch.setattr(RandomSource, "read", lambda self, name: real(self, name).fill_(float("nan")))
    assert main(["run", str(scenario), "--set", "measure.warmup_requests=0"]) == 4
    errors = capsys.readouterr().err
    assert "logits are NaN" in errors
    assert "Traceback" not in errors


def test_a_full_disk_is_a_storage_error(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []

    def write(descriptor: int, data: Any) -> int:
        writes.append(descriptor)
        if len(writes) > 2:  # the requests and the line of the first trial
            raise OSError(28, os.strerror(28))
        return os.write(descriptor, data)

    class Full:
        def __getattr__(self, name: str) -> Any:
            return write if name == "write" else getattr(os, name)

    monkeypatch.setattr(results_folder, "os", Full())
    assert main(["run", str(scenario), "--set", "measure.repeats=3", "--out", "run"]) == 4
    errors = capsys.readouterr().err
    assert "no space is left" in errors
    assert "--resume run" in errors
    monkeypatch.undo()
    os.chdir(scenario.parent)
    assert [line["trial"] for line in read(Path("run"), "trials.jsonl")] == [0]
    assert main(["run", "--resume", "run"]) == 0
    assert [line["trial"] for line in read(Path("run"), "trials.jsonl")] == [0, 1, 2]


def test_another_plan_is_not_resumed(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(scenario), "--out", "run"]) == 0
    assert main(["run", str(scenario), "--resume", "run", "--set", "workload.osl=17"]) == 2
    assert "was planned as" in capsys.readouterr().err
    assert main(["run", str(scenario), "--resume", "run"]) == 0  # the same plan: nothing is left to do
    assert len(read(Path("run"), "trials.jsonl")) == 1


def test_a_folder_of_another_command_is_not_resumed(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).resolve().parents[2] / "results" / "quickstart_ab"
    shutil.copytree(folder, "compared")
    assert main(["run", str(scenario), "--resume", "compared"]) == 2
    error = capsys.readouterr().err
    assert "the folder is of ab, not of run" in error
    assert "specbench ab --resume compared" in error


def test_another_machine_is_not_resumed(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(scenario), "--out", "run"]) == 0
    path = Path("run/environment.json")
    path.write_text(path.read_text().replace('"python": "', '"python": "2.7 or '))
    assert main(["run", "--resume", "run"]) == 2
    assert "began elsewhere (python: 2.7 or" in capsys.readouterr().err


@pytest.mark.parametrize("first", ["", "other"])
def test_a_run_is_resumed_from_another_directory(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whether the file of prompts stands beside the scenario or in the directory where the run began."""
    (tmp_path / "other").mkdir()
    (tmp_path / first / "asked.jsonl").write_text(json.dumps({"prompt": "one two three"}) + "\n")
    text = SCENARIO.replace("kind: random_tokens", "kind: prompts, path: asked.jsonl").replace("isl: 24, ", "")
    scenario.write_text(text.replace("num_requests: 6", "num_requests: 1"))
    out = tmp_path / "run"
    monkeypatch.chdir(tmp_path / first)
    assert main(["run", str(scenario), "--out", str(out), "--set", "measure.repeats=2"]) == 0
    plan = read(out, "plan.json")
    (kept, _) = (out / "trials.jsonl").read_text().splitlines()
    (out / "trials.jsonl").write_text(kept + "\n")  # as if the second had never been measured
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    assert main(["run", "--resume", str(out)]) == 0
    trials = read(out, "trials.jsonl")
    assert [trial["trial"] for trial in trials] == [0, 1]
    assert {trial["plan_hash"] for trial in trials} == {plan["plan_hash"]}
    assert len({trial["tokens_sha256"] for trial in trials}) == 1
    if not first:  # found beside the scenario from anywhere
        assert main(["run", str(scenario), "--resume", str(out), "--set", "measure.repeats=2"]) == 0


def forget_last_trial(folder: Path) -> None:
    lines = (folder / "trials.jsonl").read_text().splitlines(keepends=True)
    (folder / "trials.jsonl").write_text("".join(lines[:-1]))


def test_later_starts_keep_their_environment_beside_the_first(scenario: Path) -> None:
    assert main(["run", str(scenario), "--out", "run", "--set", "measure.repeats=2"]) == 0
    first = Path("run/environment.json").read_bytes()
    assert read(Path("run"), "environment.json")["torch"]["threads"] == 1
    for name in ("environment-2.json", "environment-3.json"):
        forget_last_trial(Path("run"))
        assert main(["run", "--resume", "run"]) == 0
        assert set(read(Path("run"), name)) == set(json.loads(first))
    assert Path("run/environment.json").read_bytes() == first
    assert main(["run", "--resume", "run"]) == 0  # nothing is left to do: no engine was built
    assert not Path("run/environment-4.json").exists()


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("environment.json", '"threads": 1', '"threads": 3', "torch.threads: 3 -> 1"),
        ("trials.jsonl", '"fingerprint":"', '"fingerprint":"0123', "weights: 0123"),
    ],
)
def test_other_threads_or_weights_are_not_resumed(
    scenario: Path, capsys: pytest.CaptureFixture[str], name: str, old: str, new: str, message: str
) -> None:
    assert main(["run", str(scenario), "--out", "run", "--set", "measure.repeats=2"]) == 0
    forget_last_trial(Path("run"))
    path = Path("run") / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    before = {file.name: file.read_bytes() for file in Path("run").iterdir() if file.name != "requests.jsonl"}
    assert main(["run", "--resume", "run"]) == 2
    assert message in capsys.readouterr().err
    after = {file.name: file.read_bytes() for file in Path("run").iterdir()}
    assert {name: after[name] for name in before} == before  # what was measured is still there


def test_a_report_names_the_head_that_was_found_and_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = "{name: eagle3, tree: {top_k: 2, depth: 2, num_nodes: 3}}"
    model = "model: random:smollm2-135m\n"  # the shape that the shipped head is for
    small = "workload: {kind: random_tokens, num_requests: 1, isl: 8, osl: 4, concurrency: 1}\n"
    cheap = "measure: {warmup_requests: 0}\nengine: {device: cpu, dtype: float32, num_threads: 1}\n"
    Path("x.yaml").write_text(f"{model}drafter: {tree}\n{small}{cheap}")
    assert main(["run", "x.yaml", "--out", "out"]) == 0
    words = "eagle3, smollm2-135m-eagle3, K = 2, a tree of 3 nodes (top_k 2, depth 2), strict acceptance"
    assert words in " ".join(capsys.readouterr().out.split())
    assert words in Path("out/report.md").read_text().replace("\\_", "_")
    (point,) = read(Path("out"), "analysis.json")["points"]
    assert (point["draft_model"], point["tree"]) == ("smollm2-135m-eagle3", {"top_k": 2, "depth": 2, "num_nodes": 3})


def test_another_draft_head_is_not_resumed(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draft_with(weights: str) -> None:
        identity = DraftIdentity("a head", weights, 3)
        monkeypatch.setattr(draft_identity, "find_draft_identity", lambda _: identity)

    draft_with("one")
    assert main(["run", str(scenario), "--out", "run", "--set", "measure.repeats=2"]) == 0
    forget_last_trial(Path("run"))
    draft_with("two")
    assert main(["run", "--resume", "run"]) == 2
    assert "weights: " in capsys.readouterr().err
    draft_with("one")
    assert main(["run", "--resume", "run"]) == 0
    (trial, *_) = [json.loads(line) for line in Path("run/trials.jsonl").read_text().splitlines()]
    assert trial["subject"]["draft_model"] == "a head"


@pytest.mark.parametrize("there", [True, False])
def test_a_wrong_input_takes_back_what_it_wrote_and_no_folder_of_others(scenario: Path, there: bool) -> None:
    Path("long.jsonl").write_text(json.dumps({"prompt": "word " * 100}) + "\n")
    text = SCENARIO.replace("kind: random_tokens", "kind: prompts, path: long.jsonl").replace("isl: 24, ", "")
    scenario.write_text(text)
    if there:
        Path("run").mkdir()
    assert main(["run", str(scenario), "--set", "engine.max_seq_len=64", "--out", "run"]) == 2
    assert Path("run").exists() is there
    assert not there or list(Path("run").iterdir()) == []


def test_a_resumed_folder_is_never_taken_back(scenario: Path) -> None:
    Path("asked.jsonl").write_text(json.dumps({"prompt": "word"}) + "\n")
    text = SCENARIO.replace("kind: random_tokens", "kind: prompts, path: asked.jsonl").replace("isl: 24, ", "")
    scenario.write_text(text.replace("num_requests: 6", "num_requests: 1"))
    assert main(["run", str(scenario), "--out", "run"]) == 0
    forget_last_trial(Path("run"))
    Path("asked.jsonl").write_text("no JSON\n")
    assert main(["run", "--resume", "run"]) == 2
    assert {"scenario.yaml", "environment.json", "plan.json"} <= {path.name for path in Path("run").iterdir()}


@pytest.mark.parametrize("is_broken", [True, False])
def test_an_error_while_closing_does_not_hide_the_first(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    from specbench.errors import EngineError, StorageError
    from specbench.measure.subject import BuiltinSubject
    from specbench.profiling import ranges

    def refuse(*_: Any) -> str:
        raise StorageError("the trace could not be written")

    def fail(_subject: Any) -> None:
        raise EngineError("the step went wrong")

    monkeypatch.setattr(ranges, "finish_tracer", refuse)
    if is_broken:
        monkeypatch.setattr(BuiltinSubject, "advance", fail)
    assert main(["run", str(scenario), "--out", "run"]) == 4
    last = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(last) == 1
    assert ("the step went wrong" if is_broken else "the trace could not be written") in last[0]


def test_forced_acceptance_accepts_no_more_than_was_drafted(scenario: Path) -> None:
    assert main(["run", str(scenario), "--out", "run", "--set", "acceptance={mode: forced, length: 2.5}"]) == 0
    counts = read(Path("run"), "analysis.json")["points"][0]["acceptance_counts"]
    assert sum(counts["accepted"]) > 0
    for name in ("drafted", "eligible", "opened"):
        assert all(a <= b for a, b in zip(counts["accepted"], counts[name], strict=True)), name


def test_a_variant_keeps_its_name_when_resumed(scenario: Path) -> None:
    assert main(["run", str(scenario), "--variant", "drafter=none", "--out", "run"]) == 0
    assert main(["run", "--resume", "run"]) == 0
    assert read(Path("run"), "analysis.json")["points"][0]["variant"] == "drafter=none"


def test_secrets_do_not_reach_a_result(scenario: Path) -> None:
    url = "workload.system_prompt=see https://user:hunter2@host/?token=s3cr3t"
    scenario.write_text(SCENARIO.replace("kind: random_tokens", "kind: chat80").replace("isl: 24, ", ""))
    process = start(scenario, "--out", "run", "--set", url, "--set", "workload.num_requests=1")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    for path in Path("run").iterdir():
        assert "hunter2" not in path.read_text(), path
        assert "s3cr3t" not in path.read_text(), path
    assert "https://***@host/?token=***" in Path("run/plan.json").read_text()
    assert "replaced by ***" in errors
    forget_last_trial(Path("run"))
    hashes = read(Path("run"), "analysis.json")["points"][0]["tokens_sha256"]
    assert main(["run", "--resume", "run"]) == 0  # the folder alone says what was measured
    assert read(Path("run"), "analysis.json")["points"][0]["tokens_sha256"] == hashes


def wait_for(condition: Any, process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it never got there"
        time.sleep(0.01)


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


LONG = ["--set", "measure.repeats=200", "--set", "workload.num_requests=2", "--out", "run"]


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(scenario: Path) -> None:
    process = start(scenario, *LONG)
    wait_for(lambda: num_lines(Path("run/trials.jsonl")) >= 2, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "specbench run --resume run" in errors
    assert "Traceback" not in errors
    assert "Throughput" in output
    analysis = read(Path("run"), "analysis.json")
    assert analysis["status"] == "interrupted"
    trials = read(Path("run"), "trials.jsonl")
    assert len(trials) >= 2
    assert trials[-1]["status"] in ("interrupted", "complete")  # a signal may fall between two trials


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_a_signal_in_a_long_trial_ends_it_within_the_step(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, overlap: str
) -> None:
    from specbench.measure.subject import BuiltinSubject

    real, steps = BuiltinSubject.advance, []

    def advance(subject: BuiltinSubject) -> None:
        steps.append(len(steps) + 1)
        if len(steps) == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        real(subject)

    monkeypatch.setattr(BuiltinSubject, "advance", advance)
    long = ["workload.num_requests=400", "measure.warmup_requests=0", f"optimizations.overlap={overlap}"]
    assert main(["run", str(scenario), "--out", "run", *(word for key in long for word in ("--set", key))]) == 130
    (trial,) = read(Path("run"), "trials.jsonl")
    assert trial["status"] == "interrupted"
    # The step in which the signal came is the last; under overlap, the output of the one launched in it is not waited
    # for, and one more call empties the engine.
    is_ahead = overlap == "on"
    assert trial["steps"]["step"] == list(range(1, 9 if is_ahead else 10))
    assert len(steps) == (10 if is_ahead else 9)
    assert trial["committed_tokens"] > 0
    assert read(Path("run"), "analysis.json")["points"][0]["output_tokens_per_s"] > 0


def test_kill_nine_then_resume_counts_every_trial_once(scenario: Path) -> None:
    few = [item.replace("repeats=200", "repeats=6") for item in LONG]
    process = start(scenario, *few)
    wait_for(lambda: num_lines(Path("run/trials.jsonl")) >= 2, process)
    process.kill()
    process.communicate()
    assert 2 <= num_lines(Path("run/trials.jsonl")) <= 6
    with Path("run/trials.jsonl").open("a") as file:
        file.write('{"trial": 5, "poi')  # what a kill in the middle of a write leaves
    resumed = start("--resume", "run")
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    trials = read(Path("run"), "trials.jsonl")
    assert [trial["trial"] for trial in trials] == list(range(6))
    point = read(Path("run"), "analysis.json")["points"][0]
    assert (point["trials"], point["requests"]) == (6, 12)
    assert len({trial["tokens_sha256"] for trial in trials}) == 1
    assert 'trial": 5' in Path("run/trials.jsonl.torn").read_text()
