"""Every scenario that is shipped runs, as printed in its first lines and in the README, here on the smallest model."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.app import main
from specbench.scenario import conflicts, machine
from specbench.scenario.yaml12 import read_yaml

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
HERE = [path for path in SCENARIOS if not path.stem.endswith("_gpu")]
ON_A_GPU = [path for path in SCENARIOS if path.stem.endswith("_gpu")]
SMALL = [
    "model=random:tiny",
    "workload.num_requests=3",
    "workload.osl=8",
    "workload.concurrency=2",
    "measure.repeats=1",
]
WITH_HEADS = ["model=random:smollm2-135m", *SMALL[1:2], "workload.osl=4", *SMALL[3:]]
"""The model whose shape the shipped heads have."""
SMALL_WINDOWS = ["workload.concurrency=2", "measure.windows.kv_len=64", "measure.windows.steps=20"]
SHORT_SWEEP = ["sweep.concurrency=1,2", "measure.repeats=2", "measure.warmup_requests=1"]
SHORT_AB = ["max_units=2", "looks=1", "period_steps=2", "quads_per_segment=1", "warmup_requests=1"]
LABELS = {"_sim": "SIMULATED", "": "natural|synthetic input|forced acceptance"}


def read(scenario: Path) -> dict[str, Any]:
    data: dict[str, Any] = read_yaml(scenario.read_text()).data
    return data


def small(scenario: Path) -> list[str]:
    """``--set`` arguments that make one run of the scenario a matter of seconds."""
    data = read(scenario)
    changes = SMALL_WINDOWS if "windows" in data.get("measure", {}) else WITH_HEADS if has_heads(data) else SMALL
    if data["workload"].get("kind") == "mt_bench" and scenario in HERE:
        changes = [*changes, "workload.kind=chat80"]  # what is there without being pulled
    return [argument for change in changes for argument in ("--set", change)]


def has_heads(scenario: dict[str, Any]) -> bool:
    """Whether any of its drafters needs a head that was trained for the model."""
    return bool(re.search("eagle3|mtp", str({key: scenario.get(key) for key in ("drafter", "variants", "sweep")})))


def short(scenario: Path, points: str) -> list[str]:
    """The same of a comparison: few units, and ``points`` of its sweep."""
    sweep = read(scenario).get("sweep", {})
    lists = [f"sweep.{key}={points}" for key in sweep if key != "zip"]
    lists += [f"sweep.zip.{key}={points}" for key in sweep.get("zip", {})]
    changes = [*lists, *(f"measure.{change}" for change in SHORT_AB)]
    return [*small(scenario), *(argument for change in changes for argument in ("--set", change))]


def commands(text: str) -> list[list[str]]:
    """The commands of ``specbench`` on a ready scenario that ``text`` shows, as their arguments."""
    lines = re.sub(r"\\\n#?", " ", text).splitlines()
    found = [shlex.split(line.lstrip("# "), comments=True) for line in lines if re.match(r"[# ]+specbench ", line)]
    return [arguments[1:] for arguments in found if any(word.startswith("scenarios/") for word in arguments)]


def takes_long(command: list[str]) -> bool:
    """Many engines, of kinds that other commands build as well."""
    return command.count("--candidate") == 3 or (command[0] == "sweep" and "mt_bench_drafters" in command[1])


def of_first_lines(scenarios: list[Path]) -> list[Any]:
    return [
        pytest.param(
            path,
            command,
            id=" ".join(command).replace("scenarios/", ""),
            marks=pytest.mark.slow if takes_long(command) else (),
        )
        for path in scenarios
        for command in commands(path.read_text())
    ]


def run(scenario: Path, out: Path, *arguments: str) -> int:
    return main(["run", str(scenario), *small(scenario), *arguments, "--out", str(out)])


def test_there_are_scenarios() -> None:
    names = {path.stem for path in SCENARIOS}
    assert names >= {"quickstart", "random_tokens", "ngram"}
    for name in ("host_preparation", "sampling_refill"):
        assert names >= {name, f"{name}_sim", f"{name}_gpu"}


@pytest.mark.parametrize("scenario", HERE, ids=lambda path: path.stem)
def test_a_ready_scenario_runs(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(scenario, tmp_path / "out") == 0, capsys.readouterr().err
    (point,) = json.loads((tmp_path / "out" / "analysis.json").read_text())["points"]
    if "windows" in read(scenario).get("measure", {}):
        assert (point["requests"], point["steps"]) == (2, 20)
        assert 40 <= point["committed_tokens"] <= 40 * (point["draft_len"] + 1)
    else:
        assert point["requests"] == 3
        assert 3 <= point["committed_tokens"] <= 24


@pytest.mark.parametrize(("scenario", "command"), of_first_lines(HERE))
def test_a_command_of_its_first_lines_runs(
    scenario: Path,
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    points = "[2]" if "--each" in command else "1,2"
    changes = short(scenario, points) if command[0] == "ab" else small(scenario)
    if command[0] == "sweep":
        fewer = ["sweep.draft_len=3"] if scenario.stem == "mt_bench_drafters" else []
        changes += [argument for change in (*SHORT_SWEEP, *fewer) for argument in ("--set", change)]
    code = main([*command, *changes, "--out", str(tmp_path / "out")])
    # A known defect is found, and makes the measurement INVALID.
    assert code == (3 if "leak" in command else 0), capsys.readouterr().err
    found = json.loads((tmp_path / "out" / "analysis.json").read_text())
    size = "_sim" if scenario.stem.endswith("_sim") else ""
    assert re.search(LABELS[size], found["label"])
    if command[0] == "sweep":
        sweep = read(scenario)["sweep"]
        if "none" not in sweep.get("drafter", ()):
            assert len(found["points"]) == 2 * len(sweep["drafter"])
            return
        lines = [(line["drafter"], line["draft_len"]) for line in found["break_even"]["lines"]]
        assert lines == [(name, k) for name in sweep["drafter"] if name != "none" for k in sweep["draft_len"]]
    if command[0] != "ab":
        return
    num_points = 2 if read(scenario).get("sweep") else 1
    roles = {"candidate": num_points * max(command.count("--candidate"), 1)}
    if "--pairs" in command:
        roles = {"candidate": 1, "alone": 3, "all but": 3, "pair": 3}
    elif "--each" in command:
        roles = {"candidate": 1, "alone": 2, "all but": 2}
    assert Counter(item["role"] for item in found["comparisons"]) == roles
    if "--each" in command:
        check_that_arms_ran_as_planned(found)
    assert all(item["tokens_identical"] for item in found["comparisons"] if item["design"] == "mirrored")


def check_that_arms_ran_as_planned(analysis: dict[str, Any]) -> None:
    """Row 2.11: each arm's counters are of its own variants, also of toggles in which the two arms do not differ."""
    baseline, recommended = {"block_staging": "full", "input_prep": "rebuild"}, {"block_staging": "bounded"}
    recommended["input_prep"] = "steady_state"
    for item in analysis["comparisons"]:
        for arm in ("baseline", "candidate"):
            name = item[arm]
            for toggle in baseline:
                is_on = f"+ {toggle}" in name or name == "on"
                expected = recommended[toggle] if is_on else baseline[toggle]
                assert list(item["counters"][arm][toggle]) == [expected], (item["baseline"], item["candidate"], arm)


@pytest.mark.parametrize("scenario", ON_A_GPU, ids=lambda path: path.stem)
def test_a_size_for_a_gpu_lacks_nothing_but_the_gpu(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (conflicts, machine):
        monkeypatch.setattr(module, "cuda_problem", lambda: "no CUDA device is present")
    assert main(["check", str(scenario)]) == 2
    place = next(n for n, line in enumerate(scenario.read_text().splitlines(), 1) if line.startswith("  device:"))
    assert capsys.readouterr().err.startswith(f"error: {scenario}:{place}: engine.device: no CUDA device is present")
    on_a_gpu(monkeypatch)
    assert main(["check", str(scenario)]) == 0
    shown = capsys.readouterr().out
    assert f"sweep: {len(read(scenario)['sweep']['concurrency'])} points, each is right as well" in shown


@pytest.mark.parametrize("command", [parameter.values[1] for parameter in of_first_lines(ON_A_GPU)], ids=" ".join)
def test_a_command_for_a_gpu_is_right(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as this is known without one: what it sets goes together, and fits into 80 GB."""
    on_a_gpu(monkeypatch)
    monkeypatch.chdir(ROOT)
    sets = [word for name, value in pairwise(command) if name == "--set" for word in (name, value)]
    assert main(["check", command[1], *sets]) == 0, capsys.readouterr().err
    assert re.search(r"# memory: weights 15.0 GiB, KV cache .*; 74.5 GiB available on cuda", capsys.readouterr().out)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``check`` believe in a GPU of 80 GB."""
    for module in (conflicts, machine):
        monkeypatch.setattr(module, "cuda_problem", lambda: None)
    monkeypatch.setattr("specbench.scenario.nvidia.free_memory_bytes", lambda: 80 * 10**9)


def test_commands_of_the_readme_are_those_that_scenarios_print() -> None:
    shown = commands((ROOT / "README.md").read_text())
    named = {word for command in shown for word in command if word.startswith("scenarios/")}
    assert [word for word in named if not (ROOT / word).is_file()] == []
    printed = [command for path in SCENARIOS for command in commands(path.read_text())]
    ready = [command for command in shown if re.match("scenarios/(host_preparation|sampling_refill)", command[1])]
    assert len(ready) >= 6
    assert [command for command in ready if command not in printed] == []


@pytest.mark.parametrize("scenario", ["quickstart", "ngram"])
def test_the_plain_variant_runs_without_speculation(scenario: str, tmp_path: Path) -> None:
    assert run(ROOT / "scenarios" / f"{scenario}.yaml", tmp_path / "out", "--variant", "plain") == 0
    (point,) = json.loads((tmp_path / "out" / "analysis.json").read_text())["points"]
    assert point["variant"] == "plain"
    assert point["acceptance_length"] == 1.0


def test_a_narrow_terminal_keeps_every_digit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run(ROOT / "scenarios" / "random_tokens.yaml", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    header = next(line for line in printed.splitlines() if line.startswith("Latency"))
    assert header.split()[-5:] == ["mean", "p50", "p90", "p95", "p99"]


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    changes = " ".join(f"--set {change}" for change in SMALL)
    command = f"{sys.executable} -m specbench run scenarios/random_tokens.yaml {changes} --out {tmp_path}/out"
    shell = f"set -o pipefail; {command} 2>/dev/null | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.md").is_file()
