"""Killed or stopped at any moment, a comparison goes on to the same plan, the same units and the same answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from whole_chain import NO_MARGIN, Killed, Machine, ask, conclude, go_on, read_lines, start

from specbench import encoding
from specbench.errors import ResultsError
from specbench.measure import ab_session, orchestration
from specbench.measure.interruption import StopSignal
from specbench.measure.looks_file import LOOKS, append_look
from specbench.measure.results_folder import PLAN, REQUESTS, TRIALS, ResultsFolder
from specbench.records import Analysis, Comparison, LookRecord
from specbench.scenario.plan import Question

COMPLETE = "complete"


def noisy(**changes: Any) -> Machine:
    """Of this seed no look ends the comparison early."""
    return Machine(**{"seed": 3, "gain": 0.002, **changes})


class Fuse:
    """Counts writes; at the one given it kills, ``done`` of it on disk: nothing, a torn half, or all."""

    def __init__(self, at: int, done: str) -> None:
        self.at, self.done = at, done
        self.count = 0

    def write(self, path: Path, text: str, really: Callable[[], Any]) -> None:
        self.count += 1
        if self.count != self.at:
            really()
            return
        if self.done == "all":
            really()
        elif self.done == "half":
            with path.open("a", encoding="utf-8") as file:
                file.write(text[: len(text) // 2])
        raise Killed


@contextmanager
def fused(fuse: Fuse) -> Iterator[Fuse]:
    """Every write of a session, once its folder is made, goes past ``fuse``."""
    append_lines, write = ResultsFolder._append_lines, ResultsFolder.write

    def _append_lines(folder: ResultsFolder, file: Any, lines: Any) -> None:
        lines = list(lines)
        text = "".join(line + "\n" for line in lines)
        fuse.write(Path(file.name), text, lambda: append_lines(folder, file, lines))

    def _write(folder: ResultsFolder, name: str, text: str) -> None:
        # A whole file appears at once, by being renamed: half of it lies under another name.
        fuse.write(folder.path / f".{name}.part", text, lambda: write(folder, name, text))

    def _append_look(path: Path, look: LookRecord) -> None:
        fuse.write(path / LOOKS, encoding.dumps(look) + "\n", lambda: append_look(path, look))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultsFolder, "_append_lines", _append_lines)
        patch.setattr(ResultsFolder, "write", _write)
        patch.setattr(ab_session, "append_look", _append_look)
        patch.setattr(orchestration, "append_look", _append_look)
        yield fuse


def count_writes(question: Question, path: Path) -> tuple[int, Analysis]:
    """What an uninterrupted comparison writes, and what it finds."""
    start(question, path)
    with fused(Fuse(0, "")) as fuse:
        assert go_on(path, noisy()) == COMPLETE
    return fuse.count, conclude(path)


def figures(analysis: Analysis) -> list[Comparison]:
    """Everything but the words that tell of several starts."""
    return [replace(comparison, scope="", in_words=[]) for comparison in analysis.comparisons]


def require_the_same(path: Path, whole: Path, expected: Analysis, *, same_plan: bool = True) -> None:
    """The folder says what ``whole`` says: nothing lost, nothing counted twice."""
    if same_plan:
        assert (path / PLAN).read_bytes() == (whole / PLAN).read_bytes()
    assert read_lines(path, LOOKS) == read_lines(whole, LOOKS)
    found = conclude(path)
    assert figures(found) == figures(expected)
    assert found.pooled == expected.pooled
    assert found.points == expected.points
    trials = read_lines(path, TRIALS)
    keys = [(trial["trial"], trial["attempt"]) for trial in trials]
    assert len(set(keys)) == len(keys)
    requests = {(request["trial"], request["attempt"]) for request in read_lines(path, REQUESTS)}
    assert requests == set(keys)
    plans = {trial["plan_hash"] for trial in trials}
    assert len(plans) == 1


def kill_at_every_write(question: Question, tmp_path: Path, step: int = 1) -> int:
    whole = tmp_path / "whole"
    count, expected = count_writes(question, whole)
    kills = [(at, done) for at in range(1, count + 1) for done in ("nothing", "half", "all")]
    for at, done in kills[::step]:
        path = start(question, tmp_path / f"{at}-{done}")
        with fused(Fuse(at, done)), pytest.raises(Killed):
            go_on(path, noisy())
        planned = (path / PLAN).exists()
        if planned:
            assert (path / PLAN).read_bytes() == (whole / PLAN).read_bytes()
        assert go_on(path, noisy()) == COMPLETE
        # Without a plan it is calibrated again, a little later on the clock; what is measured is the same.
        require_the_same(path, whole, expected, same_plan=planned)
        shutil.rmtree(path)
    return len(kills)


def test_killed_at_some_writes(tmp_path: Path) -> None:
    question = ask(tmp_path, NO_MARGIN, "measure.max_units=4", "measure.looks=2")
    assert kill_at_every_write(question, tmp_path, 4) == 3 * 11  # a plan, 4 trials twice, 2 looks


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    ["measure.design=mirrored"],
    ["measure.design=runs", "measure.max_units=4"],
    ["sweep.concurrency=1,2", "measure.max_units=6"],
    ["measure.processes=4", "measure.max_units=16"],
    ["measure.anytime=true", "measure.max_units=6"],
], ids=str)  # fmt: skip
def test_killed_at_every_write(tmp_path: Path, settings: list[str]) -> None:
    assert kill_at_every_write(ask(tmp_path, NO_MARGIN, *settings), tmp_path) > 30


def test_killed_again_and_again(tmp_path: Path) -> None:
    """Each start gets two writes further, and never as far as a block: it is measured from its beginning each time."""
    question = ask(tmp_path, NO_MARGIN, "measure.max_units=4", "measure.looks=2")
    _, expected = count_writes(question, tmp_path / "whole")
    path = start(question, tmp_path / "out")
    for _ in range(4):
        with fused(Fuse(3, "all")), pytest.raises(Killed):
            go_on(path, noisy())
    assert go_on(path, noisy()) == COMPLETE
    require_the_same(path, tmp_path / "whole", expected)
    assert conclude(path).comparisons[0].scope == "this process only"  # what counts was measured by the last start
    attempts = [(trial["trial"], trial["attempt"]) for trial in read_lines(path, TRIALS)]
    assert attempts == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (2, 0), (3, 0)]


def stop_at_every(every: int, question: Question, tmp_path: Path) -> int:
    """Ctrl-C in one step after another."""
    whole = tmp_path / "whole"
    start(question, whole)
    machine = noisy()
    assert go_on(whole, machine) == COMPLETE
    expected = conclude(whole)
    stops = range(1, machine.num_steps, every)
    for at in stops:
        path = start(question, tmp_path / str(at))
        stop = StopSignal()

        def request(count: int, at: int = at, stop: StopSignal = stop) -> None:
            if count == at:
                stop.request()

        status = go_on(path, noisy(on_step=request), stop)
        if not (path / PLAN).exists():
            assert status == "interrupted"
            assert not read_lines(path, TRIALS)
        elif (path / TRIALS).stat().st_size:
            partial = conclude(path, status)
            assert partial.status == status
            assert len(partial.comparisons[0].units) <= len(expected.comparisons[0].units)
        planned = (path / PLAN).exists()
        assert go_on(path, noisy()) == COMPLETE
        require_the_same(path, whole, expected, same_plan=planned)
        shutil.rmtree(path)
    return len(stops)


@pytest.mark.parametrize("design", ["mirrored", "runs"])
def test_stopped_in_some_steps(tmp_path: Path, design: str) -> None:
    question = ask(tmp_path, NO_MARGIN, "measure.max_units=4", "measure.looks=2", f"measure.design={design}")
    assert stop_at_every(29, question, tmp_path) > 3


@pytest.mark.slow
@pytest.mark.parametrize(("every", "settings"), [
    (5, ["measure.design=mirrored"]),
    (5, ["measure.design=runs", "measure.max_units=4"]),
    (23, ["measure.processes=4", "measure.max_units=16"]),
], ids=str)  # fmt: skip
def test_stopped_in_many_steps(tmp_path: Path, every: int, settings: list[str]) -> None:
    assert stop_at_every(every, ask(tmp_path, NO_MARGIN, *settings), tmp_path) > 15


def test_what_is_resumed_when_all_is_there_measures_nothing(tmp_path: Path) -> None:
    question = ask(tmp_path, NO_MARGIN, "measure.max_units=4")
    path = start(question, tmp_path / "out")
    assert go_on(path, noisy()) == COMPLETE
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    machine = noisy()
    assert go_on(path, machine) == COMPLETE
    assert machine.num_steps == 0
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_plan_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = start(ask(tmp_path, NO_MARGIN, "measure.max_units=4"), tmp_path / "out")
    with fused(Fuse(4, "all")), pytest.raises(Killed):
        go_on(path, noisy())
    plan = path / PLAN
    changed = plan.read_text().replace('"margin":1e-05', '"margin":0.01')
    assert changed != plan.read_text()
    plan.write_text(changed)
    for look_at in (lambda: go_on(path, noisy()), lambda: conclude(path)):
        with pytest.raises(ResultsError, match="changed after it was fixed"):
            look_at()


def test_units_that_a_resumed_process_measures_are_of_that_process(tmp_path: Path) -> None:
    question = ask(tmp_path, "measure.processes=4", "measure.max_units=16", "measure.looks=1")
    path = start(question, tmp_path / "out")
    with fused(Fuse(8, "all")), pytest.raises(Killed):
        go_on(path, noisy())
    assert {trial["process"] for trial in read_lines(path, TRIALS)} == {0}
    assert go_on(path, noisy()) == COMPLETE
    (found,) = conclude(path).comparisons
    assert [unit.process for unit in found.units] == [process for process in range(4) for _ in range(4)]
