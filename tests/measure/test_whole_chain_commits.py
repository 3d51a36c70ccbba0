"""Two commits of this project, one of them slower, from ``specbench ab --baseline-ref`` to its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from arm_process import git, make_repository

SLEEP_MS = 15
SCENARIO = """
name: commits
model: random:tiny
drafter: {name: ngram, draft_len: 2, max_ngram: 2}
workload: {kind: random_tokens, num_requests: 4, isl: 12, osl: 10, concurrency: 2}
sampling: {temperature: 0.5, seed: 1}
engine: {device: cpu, dtype: float32, num_threads: 1}
measure: {warmup_requests: 1, segment_requests: 2, max_units: 6, looks: 1}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """This package in a repository of its own: ``fast`` as it is, and ``slow``, whose every step sleeps."""
    made = make_repository(tmp_path / "project", whole=True)
    git(made, "tag", "fast")
    engine = made / "specbench" / "engine" / "llm_engine.py"
    code, launch = engine.read_text(), "launched = self._launch()\n"
    assert code.count(launch) == 1
    engine.write_text(code.replace(launch, f"{launch}        time.sleep({SLEEP_MS / 1e3})\n"))
    git(made, "commit", "--quiet", "--all", "-m", "slower")
    git(made, "tag", "slow")
    (tmp_path / "commits.yaml").write_text(SCENARIO)
    return made


def compare(project: Path, here: str, baseline: str, *flags: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """``specbench ab`` out of the checkout of ``here``; the process, and its comparison."""
    git(project, "checkout", "--quiet", here)
    folder = project.parent / f"{here}-{baseline}"
    arguments = ["ab", "commits.yaml", "--baseline-ref", baseline, "--out", str(folder), *flags]
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *arguments],
        cwd=project.parent,
        # Bytecode of one commit would be taken for that of the other, checked out within the same second.
        env={**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (folder / "analysis.json").exists(), done.stderr
    (found,) = json.loads((folder / "analysis.json").read_text())["comparisons"]
    return done, found


def require(done: subprocess.CompletedProcess[str], found: Any, verdict: str, code: int) -> None:
    """The verdict and its exit code; on a machine where others take what the slower arm leaves, INVALID for that."""
    if found["verdict"] == "INVALID":
        assert all(reason.startswith("other load") for reason in found["reasons"]), done.stderr
        assert done.returncode == 3
    else:
        assert (found["verdict"], done.returncode) == (verdict, code), done.stderr
    assert (found["speedup_pct"] < -10) == (verdict == "SLOWER")
    assert abs(found["speedup_pct"]) > 10
    assert found["design"] == "runs"
    assert found["tokens_identical"] is True
    assert found["exactness"] == "numerically-equivalent"  # another interpreter might be; float32 tokens may not differ
    gates = {gate["name"]: gate["status"] for gate in found["gates"]}
    assert (gates["tokens"], gates["repeatable"]) == ("pass", "pass")


@pytest.mark.slow
def test_the_slower_commit_is_found_whichever_side_it_is_on(project: Path) -> None:
    done, found = compare(project, "slow", "fast", "--fail-on", "slower")
    require(done, found, "SLOWER", 1)
    assert (found["baseline"], found["candidate"]) == ("fast", "here")
    assert "--fail-on slower" in done.stderr or done.returncode == 3
    done, found = compare(project, "fast", "slow", "--fail-on", "slower,inconclusive")
    require(done, found, "FASTER", 0)
    assert len(git(project, "worktree", "list").splitlines()) == 1
