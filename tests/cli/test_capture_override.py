"""``scenarios/capture_override*.yaml`` as printed in their first lines, shortened: defects are caught."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specbench.cli import tables
from specbench.engine.capture_params import Leak, clear
from specbench.engine.sampling.step_sampling import StepSampling
from specbench.scenario import conflicts, machine
from specbench.scenario.yaml12 import read_yaml

Cli = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
SCENARIO, SIM, GPU = (f"scenarios/capture_override{size}.yaml" for size in ("", "_sim", "_gpu"))
SHORT = {
    SCENARIO: ["model=random:tiny", "workload.num_requests=3", "workload.osl=8", "workload.concurrency=2"],
    SIM: ["sweep.concurrency=[2]", "measure.windows.kv_len=64", "measure.windows.steps=16"],
}
BOTH = [f"measure.{change}" for change in ("max_units=2", "looks=1", "warmup_requests=1", "period_steps=2")]
OVERRIDE = "asked for temperature 1, served temperature 0.7, top_k 50, top_p 0.9"
ARGMAX = "asked for temperature 1, served no draw at all, the argmax"
CAUGHT = {"leak": OVERRIDE, "clear_at_copy": ARGMAX, "clear_after_warmup": ARGMAX}
RECORDED = {
    "leak": r"\d captured steps still have the override",
    "clear_at_copy": r"(\d) of \1 captured steps that should draw tokens recorded the argmax",
    "clear_after_warmup": r"(\d) of \1 captured steps that should draw tokens recorded the argmax",
}
GATE = "sampling parameters"


class Compared(NamedTuple):
    """What a command left."""

    outcome: Any
    analysis: dict[str, Any]
    folder: Path

    def comparison(self, candidate: str) -> dict[str, Any]:
        (found,) = (item for item in self.analysis["comparisons"] if item["candidate"] == candidate)
        return dict(found)

    def gate(self, candidate: str) -> dict[str, Any]:
        (found,) = (gate for gate in self.comparison(candidate)["gates"] if gate["name"] == GATE)
        return dict(found)


def commands(scenario: str) -> list[list[str]]:
    """The comparisons that a scenario's first lines print, as arguments."""
    lines = re.sub(r"\\\n#?", " ", (ROOT / scenario).read_text()).splitlines()
    return [shlex.split(line.lstrip("# "))[1:] for line in lines if re.match(r"# +specbench ab ", line)]


def compare(cli: Cli, command: list[str], folder: Path) -> Compared:
    changes = [word for change in [*SHORT[command[1]], *BOTH] for word in ("--set", change)]
    outcome = cli(*command, *changes, "--out", str(folder))
    return Compared(outcome, json.loads((folder / "analysis.json").read_text()), folder)


@pytest.fixture(scope="module", params=[SCENARIO, SIM], ids=["cpu", "sim"])
def scenario(request: pytest.FixtureRequest) -> str:
    """The sizes that can be run here."""
    return str(request.param)


@pytest.fixture(scope="module")
def sound(scenario: str, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Two that are right, compared."""
    return _in_root(lambda: compare(cli, commands(scenario)[0], tmp_path_factory.mktemp("sound") / "out"))


@pytest.fixture(scope="module")
def defects(scenario: str, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """The known defects against what is right, in one command."""
    return _in_root(lambda: compare(cli, commands(scenario)[1], tmp_path_factory.mktemp("defects") / "out"))


def _in_root(act: Callable[[], Compared]) -> Compared:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return act()


@pytest.mark.parametrize("path", [SCENARIO, SIM, GPU])
def test_each_size_prints_what_is_right_and_what_is_wrong(path: str) -> None:
    first, second = commands(path)
    assert first == ["ab", path, "--baseline", "real_params", "--candidate", "clear_after_capture"]
    assert second[:4] == ["ab", path, "--baseline", "real_params"]
    assert second[4:] == [word for name in CAUGHT for word in ("--candidate", name)]
    variants = read_yaml((ROOT / path).read_text()).data["variants"]
    assert variants == {
        name: {"optimizations": {"capture_params": name}} for name in ("real_params", "clear_after_capture", *CAUGHT)
    }


def test_the_readme_prints_the_same_commands() -> None:
    text = re.sub(r"\\\n", " ", (ROOT / "README.md").read_text())
    shown = [
        shlex.split(line, comments=True)[1:]
        for line in text.splitlines()
        if re.match(r" +specbench ab scenarios/capture_override", line)
    ]
    printed = [command for path in (SCENARIO, SIM, GPU) for command in commands(path)]
    assert len(shown) >= 3
    assert [command for command in shown if command not in printed] == []


def test_sound_variants_commit_equal_tokens_and_the_gate_passes(sound: Compared) -> None:
    assert sound.outcome.code == 0, sound.outcome.stderr
    found = sound.comparison("clear_after_capture")
    assert found["verdict"] not in ("INVALID", None)
    assert found["exactness"] == "bit-identical"
    assert found["tokens_identical"] is True
    assert (found["design"], found["reasons"]) == ("mirrored", [])
    assert found["speedup_pct"] is not None
    gate = sound.gate("clear_after_capture")
    assert (gate["status"], "(temperature 1)" in gate["detail"]) == ("pass", True)
    assert "KNOWN DEFECT" not in sound.outcome.stdout + (sound.folder / "report.md").read_text()


def test_steps_were_replayed_and_not_run_eagerly(sound: Compared) -> None:
    for point in sound.analysis["points"]:
        counts = point["counters"]["graphs"]["captured"]["counts"]
        assert counts["replays"] > 0
        assert counts["eager_not_captured"] == 0


@pytest.mark.parametrize("variant", CAUGHT)
def test_row_3_7_a_known_defect_is_invalid_with_what_rows_were_served(defects: Compared, variant: str) -> None:
    assert defects.outcome.code == 3
    found = defects.comparison(variant)
    assert (found["verdict"], found["exactness"]) == ("INVALID", "known-defect")
    gate = defects.gate(variant)
    assert gate["status"] == "fail"
    wrong, total = map(int, re.match(r"(\d+) of (\d+) rows were served otherwise", gate["detail"]).groups())  # type: ignore[union-attr]
    assert 0 < wrong < total  # the baseline's, and those of steps with prompts, are right
    assert f"capture_params={variant}, a known defect: {CAUGHT[variant]} ({wrong} rows)" in gate["detail"]
    assert re.search(rf"{RECORDED[variant]} \({variant}\)", gate["detail"])
    assert found["reasons"] == [f"{GATE}: {gate['detail']}"]
    assert "The known defect was caught by the gate 'sampling parameters'" in found["in_words"][0]


def test_the_defects_are_named_before_any_figure_in_every_report(defects: Compared) -> None:
    texts = {
        "terminal": " ".join(defects.outcome.stdout.split()),
        "markdown": (defects.folder / "report.md").read_text().replace("\\", ""),
        "html": unescape((defects.folder / "report.html").read_text()),
    }
    assert defects.analysis["label"].startswith("KNOWN DEFECT, ")
    for name, text in texts.items():
        places = [text.index(f"KNOWN DEFECT: capture_params={variant}: ") for variant in CAUGHT]
        verdict, reason = text.index("3 INVALID of 3 comparisons"), text.index(f"{GATE}: ")
        assert verdict < min(places) < max(places) < reason < text.index("speedup"), name
    assert "> [!CAUTION]" in texts["markdown"]
    assert '<p class="alert bad">KNOWN DEFECT' in texts["html"]


def test_the_label_says_simulated_as_well(scenario: str, defects: Compared) -> None:
    assert ("SIMULATED" in defects.analysis["label"]) == (scenario == SIM)


def test_a_leak_that_is_mended_is_not_invalid(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict is about what rows were served with, not about the name."""
    monkeypatch.chdir(ROOT)
    leave = Leak.end_capture

    def mended(self: Leak, live: StepSampling, copies: Iterable[StepSampling]) -> None:
        leave(self, live, copies)
        clear(copies)

    monkeypatch.setattr(Leak, "end_capture", mended)
    command = ["ab", SCENARIO, "--baseline", "real_params", "--candidate", "leak"]
    found = compare(cli, command, tmp_path / "out")
    assert found.outcome.code == 0, found.outcome.stderr
    assert found.gate("leak")["status"] == "pass"
    assert "it did not show" in found.comparison("leak")["in_words"][0]
    assert "KNOWN DEFECT: capture_params=leak" in found.outcome.stdout  # it stood all the same


def test_a_run_of_a_known_defect_says_so_and_is_invalid(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    changes = [word for change in [*SHORT[SCENARIO], "measure.warmup_requests=1"] for word in ("--set", change)]
    outcome = cli("run", SCENARIO, "--variant", "leak", *changes, "--out", str(tmp_path / "out"))
    assert outcome.code == 3
    assert "KNOWN DEFECT: capture_params=leak: " in outcome.stdout
    analysis = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert analysis["label"] == "KNOWN DEFECT, synthetic input"


@pytest.mark.parametrize("defect", CAUGHT)
@pytest.mark.parametrize(
    "command",
    [
        ["check", SCENARIO, "--variant", "{defect}"],
        ["run", SCENARIO, "--variant", "{defect}"],
        ["sweep", SCENARIO, "--variant", "{defect}"],
        ["ab", SCENARIO, "--baseline", "real_params", "--candidate", "{defect}"],
    ],
    ids=lambda command: command[0],
)
def test_row_3_9_without_speculation_a_defect_means_nothing_and_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], defect: str
) -> None:
    """It would harm nobody there: a report of one beside equal tokens would say what is not."""
    monkeypatch.chdir(ROOT)
    out = [] if command[0] == "check" else ["--out", str(tmp_path / "out")]
    outcome = cli(*(word.format(defect=defect) for word in command), "--set", "drafter=none", *out)
    assert outcome.code == 2
    assert f"{defect} means nothing without speculation, and the drafter is none here" in outcome.stderr
    assert "try: drafter: ngram, or another variant" in outcome.stderr
    assert "optimizations.capture_params" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_a_sweep_over_the_variants_says_which_are_defects(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    changes = [*SHORT[SCENARIO], "measure.warmup_requests=1"]
    changes.append("sweep.grid.optimizations.capture_params=[real_params, clear_at_copy]")
    sets = [word for change in changes for word in ("--set", change)]
    outcome = cli("sweep", SCENARIO, *sets, "--out", str(tmp_path / "out"))
    assert outcome.code == 3, outcome.stderr
    shown = " ".join(outcome.stdout.split())
    assert "KNOWN DEFECT: capture_params=clear_at_copy: " in shown
    assert "capture_params=leak" not in shown


def test_check_names_the_defects_of_all_variants_or_of_the_one_chosen(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    named = [line for line in cli("check", SCENARIO).stdout.splitlines() if "KNOWN DEFECT" in line]
    assert [line.split(": ")[1] for line in named] == [f"capture_params={variant}" for variant in CAUGHT]
    assert all(line.startswith("# KNOWN DEFECT: ") for line in named)
    (chosen,) = json.loads(cli("check", SCENARIO, "--variant", "leak", "--json").stdout)["summary"]["known_defects"]
    assert chosen.startswith("KNOWN DEFECT: capture_params=leak: clear the flag in the live metadata alone")
    (chosen,) = (
        line
        for line in cli("check", SCENARIO, "--set", "optimizations.capture_params=clear_at_copy").stdout.splitlines()
        if "KNOWN DEFECT" in line
    )
    assert "capture_params=clear_at_copy" in chosen
    assert "KNOWN DEFECT" not in cli("check", SCENARIO, "--variant", "real_params").stdout


def test_check_names_them_in_red_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    lines: list[tuple[str, str]] = []

    class Seen(Console):
        def print(self, *objects: Any, **_options: Any) -> None:
            lines.extend((str(item), str(item.style)) for item in objects)

    monkeypatch.setattr(tables, "open_console", Seen)
    monkeypatch.setattr(tables.sys, "stdout", _Terminal())
    tables.print_comment("KNOWN DEFECT: capture_params=leak")
    assert lines == [("# KNOWN DEFECT: capture_params=leak", "bold red")]


class _Terminal:
    def isatty(self) -> bool:
        return True


def test_the_size_for_a_gpu_lacks_nothing_but_the_gpu(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for module in (conflicts, machine):
        monkeypatch.setattr(module, "cuda_problem", lambda: None)
    monkeypatch.setattr("specbench.scenario.nvidia.free_memory_bytes", lambda: 80 * 10**9)
    outcome = cli("check", GPU)
    assert outcome.code == 0, outcome.stderr
    assert "graphs: captured" in outcome.stdout  # by default, on CUDA
    assert "# sweep: 3 points, each is right as well" in outcome.stdout
