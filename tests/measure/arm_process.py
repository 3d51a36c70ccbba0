"""What the tests of arms in processes of their own share: a small engine, a load, and a copy of this project."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

import specbench
from specbench.engine.config import DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.sampling.params import SamplingParams
from specbench.measure.clock import SystemClock
from specbench.measure.driver import ClosedLoop, LoopResult, PlannedRequest
from specbench.measure.interruption import StopSignal
from specbench.measure.subject import Subject

PACKAGE = Path(specbench.__file__).parent


@dataclass(frozen=True)
class Settings:
    """The ``process`` section of a scenario."""

    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    worktree: str | None = None


def tiny_config(*, overlap: bool = False, **changes: object) -> EngineConfig:
    """A float32 engine with an n-gram drafter that now and then hits."""
    changes.setdefault("optimizations", (("overlap", "on" if overlap else "off"),))
    config = EngineConfig(
        model=ModelSpec("tiny", "random", seed=1),
        device="cpu",
        max_seq_len=128,
        max_batch_size=3,
        num_blocks=60,
        dtype="float32",
        tokens_per_block=8,
        max_num_tokens=64,
        num_threads=1,
        drafter=DrafterSpec("ngram", 2, max_ngram=2),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


@dataclass
class Prompts:
    """Two-turn conversations whose second turn continues the first one's output."""

    count: int
    params: SamplingParams

    @property
    def num_turns(self) -> Sequence[int]:
        return [2] * self.count

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        prompt = [7, 8, 9, 7, 8, 10 + conversation] * 3 + [token for output in previous_outputs for token in output]
        params = replace(self.params, seed=conversation * 10 + turn, max_tokens=8 + 3 * conversation)
        return PlannedRequest(f"{conversation}/{turn}", conversation, turn, None, prompt, params)


def run_loop(subject: Subject, source: Prompts, concurrency: int = 2) -> LoopResult:
    """The closed loop that every measurement uses."""
    return ClosedLoop(subject, source, concurrency, SystemClock(), StopSignal()).run()


def wait_until_gone(pid: int, timeout_s: float = 10.0) -> bool:
    """True once no process has the number any more; a zombie is nobody."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def git(folder: Path, *arguments: str) -> str:
    """Run git in ``folder``, which must succeed."""
    names = ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL")
    environment = {**os.environ, **dict.fromkeys(names, "test@example.com"), "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_repository(folder: Path, *, whole: bool) -> Path:
    """A git repository with one commit: this package as it lies here, or only its first file."""
    package = folder / "specbench"
    if whole:
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        package.mkdir(parents=True)
        shutil.copy(PACKAGE / "__init__.py", package)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder
