"""Any scenario text and any flags end in exit code 0 or 2, with one message and never a traceback."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specbench.cli import run as run_module
from specbench.cli import session_folder
from specbench.errors import ResultsError
from specbench.scenario.diagnosis import all_keys
from specbench.scenario.yaml12 import dump_yaml, read_yaml

Cli = Callable[..., Any]
Attempt = Callable[[str, bytes, list[str]], None]
ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
TEXTS = [path.read_text(encoding="utf-8") for path in sorted(SCENARIOS.glob("*.yaml"))]
QUICKSTART = (SCENARIOS / "quickstart.yaml").read_bytes()
STOP = "stopped where measuring would begin"

_few = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
_many = settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))

# fmt: off
_odd: st.SearchStrategy[Any] = st.sampled_from([
    None, True, False, 0, -1, 1, 2, 3, 4, 8, 16, 17, 64, 100, 512, 2000, 10**9, 10**25, 0.5, 1.5, 1e-5, 1e308,
    float("inf"), float("nan"), "1e-5", "", "auto", "on", "off", "none", "ngram", "cpu", "float32", "math", "10-20",
    "x.y=3", "forced", "strict", "all", "2GiB", "5m", "0.5%", "chat80", "prompts", "random_tokens", "tiny",
    "random:tiny", "random:", "/", ".", "..", "a/b", "~", "\x1b[31m", "é", "x" * 3000, [], {}, [1, 2], [2, 1],
    [[]], ["x", None], {"a": 1}, {4: 6}, {"": ""}, {"source": "tiny"}, {"mode": "forced"},
])
# fmt: on
_keys = st.sampled_from([*all_keys(), "model", "drafter", "workload", "engine", "variants.plain", "x", "", "a..b", "."])
_noise = st.text(st.sampled_from("aA0:-[]{},&*!|>'\"%@`#\n\t ?~.=<>\\é\x00\x07\ufeff"), max_size=12)


@st.composite
def broken_text(draw: st.DrawFn) -> bytes:
    """A scenario with a few cuts, insertions and repeats anywhere."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        at = draw(st.integers(0, len(text)))
        to = min(len(text), at + draw(st.integers(0, 30)))
        text = text[:at] + draw(st.one_of(_noise, st.just(text[at:to] * 2), st.just(""))) + text[to:]
    raw = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 20)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=4)) + raw[at:]
    return raw


@st.composite
def odd_values(draw: st.DrawFn) -> bytes:
    """A scenario that is YAML, with odd values at real and unreal keys."""
    data = read_yaml(draw(st.sampled_from(TEXTS))).data
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        *path, last = draw(_keys).split(".")
        target = data
        for part in path:
            target = target.setdefault(part, {}) if isinstance(target.get(part, {}), dict) else {}
        target[last] = copy.deepcopy(draw(_odd))
    return dump_yaml(data).encode()


_flag = st.one_of(
    st.builds(lambda key, value: ["--set", f"{key}={value}"], _keys, st.one_of(_odd.map(str), _noise)),
    st.builds(lambda value: ["--set", value], _noise),
    st.sampled_from(["workload.osl=32", "sampling.top_k=5", "model=tiny", "drafter=none"]).map(lambda s: ["--set", s]),
    st.builds(lambda value: ["--variant", value], st.sampled_from(["plain", "off", "on", "plan", "=", "a=b,c=d", ""])),
    st.builds(lambda key, value: ["--variant", f"{key}={value}"], _keys, _odd.map(str)),
    st.sampled_from([["--json"], ["--schema"], ["--jsn"], ["--"], ["-"], ["extra"], ["--set"], ["--variant"], ["-x"]]),
)
_flags = st.lists(_flag, max_size=4).map(lambda lists: [item for items in lists for item in items])
_run_flag = st.one_of(
    _flag,
    st.sampled_from([["--out", "/proc/x"], ["--resume", "/proc/x"], ["--steps", "9-2"], ["--profile", "all"]]),
)
_WITH_VALUE = ["--margin", "--budget", "--processes", "--looks", "--design", "--fail-on", "--out", "--resume"]
_ab_flag = st.one_of(
    _flag,
    st.builds(lambda flag, value: [flag, value], st.sampled_from(["--baseline", "--candidate"]), st.one_of(
        st.sampled_from(["plain", "off", "on", "nobody", "", "="]),
        st.builds(lambda key, value: f"{key}={value}", _keys, _odd.map(str)),
    )),
    st.builds(
        lambda flag, value: [flag, value],
        st.sampled_from(_WITH_VALUE),
        st.one_of(_odd.map(str), st.sampled_from(["slower", "4", "1%", "1s", "runs", "mirrored", "/proc/x"])),
    ),
    st.sampled_from([["--each"], ["--pairs"], ["--anytime"], ["--set", "sweep.concurrency=1,2"]]),
)  # fmt: skip
_ab_flags = st.lists(_ab_flag, max_size=4).map(
    lambda lists: ["--baseline", "off", *(item for items in lists for item in items)]
)
_run_flags = st.lists(_run_flag, max_size=4).map(lambda lists: [item for items in lists for item in items])


@pytest.fixture(autouse=True, scope="module")
def _offline() -> Iterator[None]:
    """Nothing here may ask a network, or measure."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as cache:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("SPECBENCH_CACHE", cache)

        def stop() -> None:
            raise ResultsError(STOP)

        patch.setattr(run_module, "describe_environment", stop)
        patch.setattr(session_folder, "describe_environment", stop)
        yield


def _judge(outcome: Any, argv: list[str]) -> None:
    assert outcome.code in (0, 2), outcome.stderr
    assert "Traceback" not in outcome.stderr
    if outcome.code == 0:
        assert outcome.stderr == ""
        assert outcome.stdout
        if "--json" in argv and argv[0] == "check":
            json.loads(outcome.stdout)
        return
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("error: ")
    assert sum(line.startswith("error: ") for line in outcome.stderr.splitlines()) == 1
    assert len(outcome.stderr) < 20_000
    assert all(char.isprintable() or char in "\n\t" for char in outcome.stderr)


@pytest.fixture(scope="module")
def attempt(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    """Write a scenario beside the prompts that it may name, give it to a command, and judge what comes out."""
    folder = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(SCENARIOS / "data", folder / "data")

    def run(command: str, content: bytes, flags: list[str]) -> None:
        path = folder / "x.yaml"
        path.write_bytes(content)
        argv = [command, str(path), *flags]
        _judge(cli(*argv), argv)

    return run


class TestQuick:
    """A few hundred of each, in every run."""

    @_few
    @given(broken_text())
    def test_broken_text(self, attempt: Attempt, content: bytes) -> None:
        attempt("check", content, [])

    @_few
    @given(odd_values())
    def test_odd_values(self, attempt: Attempt, content: bytes) -> None:
        attempt("check", content, ["--json"])

    @_few
    @given(_flags)
    def test_flags(self, attempt: Attempt, flags: list[str]) -> None:
        attempt("check", QUICKSTART, flags)

    @_few
    @given(_run_flags)
    def test_flags_of_run(self, attempt: Attempt, flags: list[str]) -> None:
        attempt("run", QUICKSTART, flags)

    @_few
    @given(_ab_flags)
    def test_flags_of_ab(self, attempt: Attempt, flags: list[str]) -> None:
        attempt("ab", QUICKSTART, flags)

    @_few
    @given(_flags)
    def test_flags_of_sweep(self, attempt: Attempt, flags: list[str]) -> None:
        attempt("sweep", QUICKSTART, flags)

    @_few
    @given(st.lists(st.one_of(_noise, st.sampled_from(["check", "list", "run", "drafters", "--help"])), max_size=4))
    def test_any_words(self, cli: Cli, words: list[str]) -> None:
        _judge(cli(*words), words or [""])


@pytest.mark.fuzz
class TestLong:
    """Thousands of each."""

    @_many
    @given(broken_text(), _flags)
    def test_broken_text_and_flags(self, attempt: Attempt, content: bytes, flags: list[str]) -> None:
        attempt("check", content, flags)

    @_many
    @given(odd_values(), _flags)
    def test_odd_values_and_flags(self, attempt: Attempt, content: bytes, flags: list[str]) -> None:
        attempt("check", content, flags)

    @_many
    @given(odd_values(), _run_flags)
    def test_run(self, attempt: Attempt, content: bytes, flags: list[str]) -> None:
        attempt("run", content, flags)

    @_many
    @given(odd_values(), _ab_flags)
    def test_ab(self, attempt: Attempt, content: bytes, flags: list[str]) -> None:
        attempt("ab", content, flags)

    @_many
    @given(odd_values(), _flags)
    def test_sweep(self, attempt: Attempt, content: bytes, flags: list[str]) -> None:
        attempt("sweep", content, flags)

    @_many
    @given(st.binary(max_size=200))
    def test_bytes(self, attempt: Attempt, content: bytes) -> None:
        attempt("check", content, [])


@pytest.mark.parametrize(
    ("content", "flags"),
    [
        (b"\x00\x01", []),
        (b"a: &a [*a]", []),
        (b"[" * 20_000, []),
        (b"model: {source: random:tiny}\n", ["--set", "engine.kv_cache=1B"]),
        ("workload: {path: é}\n".encode("latin-1"), []),
        (b"name: x\n", ["--set", "name=\ud800"]),
    ],
)
def test_in_a_process_of_its_own(tmp_path: Path, content: bytes, flags: list[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    argv = [sys.executable, "-m", "specbench", "check", str(path), *flags]
    raw = [os.fsencode(word) if word.isascii() else word.encode("utf-8", "surrogatepass") for word in argv]
    done = subprocess.run(raw, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
