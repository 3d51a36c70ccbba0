"""``specbench check``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.downloads import write_manifest
from specbench.engine.models.checkpoint import model_directory
from specbench.scenario.loader import load_scenario
from specbench.scenario.resolve import resolve

Cli = Callable[..., Any]
SCENARIOS = Path(__file__).parents[2] / "scenarios"
QUICKSTART = str(SCENARIOS / "quickstart.yaml")
CHECKED_HERE = sorted(path.name for path in SCENARIOS.glob("*.yaml") if not path.stem.endswith("_gpu"))
"""Those for a GPU are right only where there is one, and have tests that pretend so."""


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", CHECKED_HERE)
def test_ready_scenarios_and_their_variants_are_right(cli: Cli, name: str) -> None:
    outcome = cli("check", str(SCENARIOS / name))
    assert (outcome.code, outcome.stderr) == (0, "")
    variants = list(yaml.safe_load(outcome.stdout)["variants"])
    assert f"# variants: {', '.join(variants)}: each is right as well" in outcome.stdout or not variants
    if "plain" in variants:
        plain = cli("check", str(SCENARIOS / name), "--variant", "plain", "--json")
        assert json.loads(plain.stdout)["summary"]["draft_len"] == 0


def test_the_printed_scenario_is_one_and_means_the_same(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("check", QUICKSTART, "--set", "workload.osl=50")
    copy = tmp_path / "copy.yaml"
    copy.write_text(outcome.stdout)
    assert resolve(load_scenario(copy)) == resolve(load_scenario(QUICKSTART, ["workload.osl=50"]))
    assert [key for key, value in yaml.safe_load(outcome.stdout).items() if value is None] == ["process"]


def test_the_summary_says_what_it_would_take(cli: Cli) -> None:
    lines = dict(
        line[2:].split(": ", 1) for line in cli("check", QUICKSTART).stdout.splitlines() if line.startswith("# ")
    )
    assert "134.5M parameters" in lines["model"]
    assert "not on this machine (specbench pull smollm2-135m)" in lines["model"]
    assert "132 blocks of 32 tokens, 22.5 KiB a token" in lines["memory"]
    assert lines["plan"].startswith("1 trial(s), each 24 requests at concurrency 4, K = 4, 2304 output tokens at most")


def test_k_by_batch_size_is_written_out(cli: Cli) -> None:
    by_batch = ["--set", "drafter.draft_len=null", "--set", "drafter.runtime_draft_len={2: 4, 8: 1}"]
    assert "at concurrency 4, K = 4 up to batch 2, 1 up to batch 8, " in cli("check", QUICKSTART, *by_batch).stdout
    summary = json.loads(cli("check", QUICKSTART, "--json", *by_batch).stdout)["summary"]
    assert (summary["draft_len"], summary["runtime_draft_len"]) == (4, {"2": 4, "8": 1})


def test_points_of_the_sweep_are_checked_and_counted(cli: Cli) -> None:
    sweep = ["--set", "sweep.concurrency=1,2", "--set", "sweep.draft_len=0,2,4"]
    assert "# sweep: 6 points, each is right as well" in cli("check", QUICKSTART, *sweep).stdout
    assert json.loads(cli("check", QUICKSTART, "--json", *sweep).stdout)["summary"]["sweep_points"] == 6
    assert "# sweep" not in cli("check", QUICKSTART).stdout
    assert cli("check", QUICKSTART, *sweep, "--variant", "plain").code == 0
    wrong = cli("check", QUICKSTART, "--set", "sweep.osl=8,2000")
    assert wrong.code == 2
    assert "at workload.osl=2000: 2000 output tokens leave no room" in wrong.stderr


def test_json_is_json_and_nothing_else(cli: Cli) -> None:
    outcome = cli("check", QUICKSTART, "--json", "--set", "model=random:tiny", "--set", "workload.num_requests=all")
    found = json.loads(outcome.stdout)
    assert found["scenario"]["model"] == {"source": "tiny", "weights": "random", "seed": 0, "revision": None}
    assert found["summary"]["weights"] == "random, seed 0"
    assert found["summary"]["requests_per_trial"] == 160
    assert len(found["plan_sha256"]) == 64


def test_weights_that_were_pulled_are_found(cli: Cli) -> None:
    directory = model_directory("smollm2-135m")
    directory.mkdir(parents=True)
    write_manifest(directory, {"origin": "somewhere"})
    summary = json.loads(cli("check", QUICKSTART, "--json").stdout)["summary"]
    assert summary["weights"] == "smollm2-135m (somewhere)"


def test_mt_bench_may_be_missing(cli: Cli) -> None:
    summary = json.loads(cli("check", QUICKSTART, "--json", "--set", "workload=mt_bench").stdout)["summary"]
    assert summary["requests_per_trial"] is None


def test_schema_needs_no_scenario(cli: Cli) -> None:
    schema = json.loads(cli("check", "--schema").stdout)
    assert schema["properties"]["workload"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "error: specbench check: no scenario is given"),
        (["no.yaml"], "error: no.yaml: cannot be read: No such file or directory"),
        ([QUICKSTART, "--set", "workload.isl=3"], "error: --set workload.isl: chat80 has prompts of its own lengths"),
        ([QUICKSTART, "--set", "workload.concurrency=60000"], "error: engine: needs "),
        ([QUICKSTART, "--set", "model=nonsense"], "error: no model 'nonsense'"),
        ([QUICKSTART, "--set", "model=/"], "error: /: has no config.json"),
        ([QUICKSTART, "--variant", "plian"], "error: --variant plian: no such variant"),
        (
            [QUICKSTART, "--set", "drafter.draft_len=17"],
            "error: --set drafter.draft_len: found 17; allowed: 16 or less",
        ),
        ([QUICKSTART, "--set", "engine.max_seq_len=99999"], "error: --set engine.max_seq_len: found 99999; allowed"),
    ],
)
@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_what_is_wrong_is_one_message_and_exit_2(cli: Cli, argv: list[str], message: str, json_flag: list[str]) -> None:
    outcome = cli("check", *argv, *json_flag)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(message)


def test_a_wrong_variant_is_found_though_nobody_asked_for_it(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model: tiny\nvariants:\n  long:\n    workload.osl: 5000\n")
    outcome = cli("check", str(path))
    assert outcome.code == 2
    assert f"{path}:4 (variant 'long'): workload.osl" in outcome.stderr


DRAFTERS = str(SCENARIOS / "drafters.yaml")
TREE = "drafter={name: eagle3, tree: {top_k: 4, depth: 4, num_nodes: 12}}"
SHORT = ("--set", "engine.max_seq_len=256")
TOO_LONG = "--set engine.max_seq_len: 256 tokens do not hold isl 32 + osl 500"


@pytest.fixture
def lengths(tmp_path: Path) -> str:
    """A scenario one of whose variants fits into :data:`SHORT`."""
    path = tmp_path / "x.yaml"
    path.write_text(
        "model: tiny\nworkload: {kind: random_tokens, isl: 32, osl: 16, num_requests: 4}\n"
        "variants: {long: {workload.osl: 500}, brief: {workload.osl: 8}}\n"
    )
    return str(path)


def test_what_run_takes_is_right_and_a_variant_that_is_wrong_beside_it_is_named(cli: Cli, lengths: str) -> None:
    outcome = cli("check", lengths, *SHORT)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "# variants: brief: each is right as well" in outcome.stdout
    assert f"# variant long: {TOO_LONG}" in outcome.stdout
    summary = json.loads(cli("check", lengths, *SHORT, "--json").stdout)["summary"]
    assert summary["variants"] == ["brief"]
    assert list(summary["wrong_variants"]) == ["long"]


def test_a_drafter_on_the_command_line_leaves_every_variant_right(cli: Cli) -> None:
    summary = json.loads(cli("check", DRAFTERS, "--set", TREE, "--json").stdout)["summary"]
    assert summary["variants"] == ["none", "ngram", "eagle3", "mtp"]  # those that draft no trees drop it
    assert summary["wrong_variants"] == {}
    assert summary["tree"] == {"top_k": 4, "depth": 4, "num_nodes": 12}


def test_the_plan_names_the_tree(cli: Cli) -> None:
    by_default = cli("check", DRAFTERS, "--set", TREE).stdout
    assert "at concurrency 1, K = 4, a tree of 12 nodes (top_k 4, depth 4), 5120 output tokens" in by_default
    changed = cli("check", DRAFTERS, "--set", TREE, "--set", "drafter.tree.top_k=2").stdout
    assert "a tree of 12 nodes (top_k 2, depth 4)" in changed
    assert "tree" not in cli("check", DRAFTERS).stdout.split("# plan: ")[1].splitlines()[0]


def test_a_key_below_one_that_the_command_line_made_is_placed_there(cli: Cli) -> None:
    outcome = cli("check", DRAFTERS, "--set", "drafter.tree.top_k=2")
    assert outcome.code == 2
    assert outcome.stderr.startswith(
        "error: --set drafter.tree.top_k: drafter.tree: the drafter ngram+eagle3 drafts no"
    )


@pytest.mark.parametrize("command", ["check", "run", "sweep"])
def test_a_variant_that_is_asked_for_is_refused_by_its_name(cli: Cli, command: str, lengths: str) -> None:
    outcome = cli(command, lengths, "--variant", "long", *SHORT)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith(f"error: --variant long: {TOO_LONG}")


def test_a_comparison_names_the_arm_that_is_wrong(cli: Cli, lengths: str) -> None:
    outcome = cli("ab", lengths, "--baseline", "brief", "--candidate", "long", *SHORT)
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"error: --candidate long: {TOO_LONG}")


def test_a_wrong_variant_of_the_file_or_of_a_set_is_refused_by_its_name(cli: Cli, lengths: str, tmp_path: Path) -> None:
    path = tmp_path / "y.yaml"
    path.write_text("model: tiny\nworkload: {kind: random_tokens, isl: 32}\nvariants: {x: {workload.osl: 5000}}\n")
    outcome = cli("check", str(path))
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"error: {path}:3 (variant 'x'): workload.osl")
    outcome = cli("check", lengths, *SHORT, "--set", "variants.more={workload.osl: 500}")
    assert outcome.code == 2  # what is set there is asked about; long, wrong as well, is not
    assert outcome.stderr.startswith(f"error: variant more: {TOO_LONG}")


def test_a_sweep_that_is_wrong_beside_a_set_is_told_and_its_own_set_refused(
    cli: Cli, lengths: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(path.read_text() + "sweep: {osl: [8, 500]}\n")
    told = "engine.max_seq_len: at workload.osl=500: 256 tokens do not hold"
    outcome = cli("check", lengths, *SHORT)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert f"# sweep: --set {told}" in outcome.stdout
    assert "points, each is right" not in outcome.stdout
    refused = cli("check", lengths, *SHORT, "--set", "sweep.osl=500,8")
    assert refused.code == 2
    assert told in refused.stderr
    assert told in cli("sweep", lengths, *SHORT, "--out", str(tmp_path / "out")).stderr
