"""A plan is measured trial by trial, and goes on after anything that stops it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_subject import DEVICE_NS, STEP_NS, FakeClock, FakeSubject, make_plan, make_run, open_folder

from specbench.device.tracing import Span
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import NonFiniteLogitsError
from specbench.measure.analysis import RunContext, analyze_run
from specbench.measure.executor import execute
from specbench.measure.interruption import StopSignal
from specbench.measure.recording import Kept
from specbench.measure.results_folder import ResultsFolder
from specbench.measure.subject import Telemetry


def lines(path: Path, name: str = "trials.jsonl") -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


def test_every_trial_is_on_disk_before_the_next_starts(tmp_path: Path) -> None:
    seen: list[int] = []
    subject = FakeSubject(FakeClock(), on_step=lambda _step: seen.append(len(lines(tmp_path))))
    with open_folder(tmp_path) as folder:
        assert execute(make_run(folder, make_plan(repeats=3), subject=subject)) == "complete"
    per_trial = len(seen) // 3
    assert seen == [0] * per_trial + [1] * per_trial + [2] * per_trial
    assert [line["trial"] for line in lines(tmp_path)] == [0, 1, 2]


def test_figures_of_a_trial(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder, turns=[1, 1]))
    (trial,) = lines(tmp_path)
    # Two requests of five tokens: a context step and two steps of two tokens each. The last commit comes before the
    # last update.
    assert trial["committed_tokens"] == 10
    assert trial["wall_ns"] == 3 * STEP_NS - 200_000
    assert trial["output_tokens_per_s"] == pytest.approx(10 / (trial["wall_ns"] / 1e9))
    assert trial["acceptance_length"] == 2.0
    assert trial["device_busy"]["end_ns"][0] - trial["device_busy"]["start_ns"][0] == DEVICE_NS
    assert trial["steps"]["output_ns"][-1] == trial["wall_ns"]
    assert trial["pass"] == 0
    assert trial["status"] == "complete"
    first = lines(tmp_path, "requests.jsonl")[0]
    assert first["ttft_ms"] == 1.15
    assert first["accepted_lengths"] == [2, 2]
    assert first["chunk_sizes"] == [1, 2, 2]


def test_what_lies_outside_the_window_is_left_out(tmp_path: Path) -> None:
    class LateSubject(FakeSubject):
        """Launches ahead: one more step runs after the last commit, as under overlap scheduling."""

        def drain(self) -> Telemetry:
            if self.steps:
                late = replace(self.steps[-1], output_ns=self.clock.ns + 9_000, num_committed=0, num_target_steps=0)
                self.steps.append(late)
                self.busy.append(Span("device_step", "device", self.clock.ns, self.clock.ns + 9_000))
            return super().drain()

    late, plain = LateSubject(FakeClock()), FakeSubject(FakeClock())
    plain.submit([1], SamplingParams(max_tokens=1), "stray")
    plain.advance()  # whatever ran before the trial is in no figure of it
    plain.clock.ns = late.clock.ns
    for name, subject in (("late", late), ("plain", plain)):
        with open_folder(tmp_path / name) as folder:
            execute(make_run(folder, subject=subject))
    (first,), (second,) = lines(tmp_path / "late"), lines(tmp_path / "plain")
    for key in ("wall_ns", "device_busy", "ranges"):
        assert first[key] == second[key]
    assert first["steps"]["output_ns"] == second["steps"]["output_ns"]


def test_requests_are_in_workload_order_and_hashed_in_it(tmp_path: Path) -> None:
    with open_folder(tmp_path / "a") as folder:
        execute(make_run(folder, turns=[2, 1, 2]))
    with open_folder(tmp_path / "b") as folder:
        execute(make_run(folder, turns=[2, 1, 2], concurrency=1))
    ids = [line["request_id"] for line in lines(tmp_path / "a", "requests.jsonl")]
    assert ids == ["c0/t0", "c0/t1", "c1/t0", "c2/t0", "c2/t1"]
    # Another concurrency sends them in another order; the tokens are the same, and so is the hash.
    assert lines(tmp_path / "a")[0]["tokens_sha256"] == lines(tmp_path / "b")[0]["tokens_sha256"]


def test_warm_up_is_separate_and_shown(tmp_path: Path) -> None:
    with open_folder(tmp_path) as folder:
        execute(make_run(folder, make_plan(repeats=2, warmup_requests=3)))
        analysis = analyze_run(folder.contents.trials, folder.contents.requests, RunContext())
    first, second = lines(tmp_path)
    assert first["warmup"] == {"requests": 3, "tokens": 9, "steps": 4, "seconds": 4 * STEP_NS / 1e9}
    assert second["warmup"] is None
    assert first["steps"]["output_ns"] == second["steps"]["output_ns"]  # nothing of the warm-up is in it
    assert analysis.warmup is not None
    assert analysis.warmup.requests == 3


def test_content_is_kept_only_when_asked(tmp_path: Path) -> None:
    with open_folder(tmp_path / "a") as folder:
        execute(make_run(folder))
    with open_folder(tmp_path / "b") as folder:
        execute(make_run(folder, kept=Kept(outputs=True, prompts=True, decode=lambda ids: f"{len(ids)} ids")))
    quiet, told = lines(tmp_path / "a", "requests.jsonl")[0], lines(tmp_path / "b", "requests.jsonl")[0]
    names = ("output_token_ids", "prompt_token_ids", "output_text", "prompt_text")
    assert [quiet[name] for name in names] == [None] * 4
    assert [told[name] for name in names] == [[8, 9, 10, 11, 12], [0, 0, 1], "5 ids", "3 ids"]


def test_an_interrupted_trial_is_kept_with_its_figures_and_repeated(tmp_path: Path) -> None:
    stop = StopSignal()
    subject = FakeSubject(FakeClock(), on_step=lambda step: stop.request() if step == 9 else None)
    plan = make_plan(repeats=3)
    with open_folder(tmp_path) as folder:
        assert execute(make_run(folder, plan, subject=subject, stop=stop)) == "interrupted"
        partial = analyze_run(folder.contents.trials, folder.contents.requests, RunContext(planned_trials=3))
    (first, cut) = lines(tmp_path)
    assert [first["status"], cut["status"]] == ["complete", "interrupted"]
    assert 0 < cut["committed_tokens"] < first["committed_tokens"]
    assert cut["output_tokens_per_s"] is not None
    assert (partial.status, partial.points[0].trials) == ("interrupted", 2)
    with ResultsFolder(tmp_path) as folder:
        assert execute(make_run(folder, plan)) == "complete"
        whole = analyze_run(folder.contents.trials, folder.contents.requests, RunContext(planned_trials=3))
    assert [(line["trial"], line["attempt"], line["status"]) for line in lines(tmp_path)] == [
        (0, 0, "complete"), (1, 0, "interrupted"), (1, 1, "complete"), (2, 0, "complete"),
    ]  # fmt: skip
    assert (whole.status, whole.points[0].trials, whole.points[0].requests) == ("complete", 3, 3 * 4)
    assert whole.points[0].committed_tokens == 3 * first["committed_tokens"]


def test_a_resumed_run_measures_only_what_is_missing(tmp_path: Path) -> None:
    plan = make_plan(repeats=2)
    with open_folder(tmp_path) as folder:
        execute(make_run(folder, plan))
    again = FakeSubject(FakeClock())
    with ResultsFolder(tmp_path) as folder:
        assert execute(make_run(folder, plan, subject=again)) == "complete"
    assert again.num_steps == 0
    assert len(lines(tmp_path)) == 2


def test_a_stop_between_trials_starts_no_other(tmp_path: Path) -> None:
    stop = StopSignal()
    stop.request()
    with open_folder(tmp_path) as folder:
        assert execute(make_run(folder, stop=stop)) == "interrupted"
    assert lines(tmp_path) == []


def test_nan_logits_end_the_run_and_keep_what_was_measured(tmp_path: Path) -> None:
    def fail(step: int) -> None:
        if step == 9:
            raise NonFiniteLogitsError("the target's logits are NaN", where="step 9")

    with open_folder(tmp_path) as folder, pytest.raises(NonFiniteLogitsError) as error:
        execute(make_run(folder, make_plan(repeats=3), subject=FakeSubject(FakeClock(), on_step=fail)))
    assert error.value.exit_code == 4
    assert [line["status"] for line in lines(tmp_path)] == ["complete"]
    with ResultsFolder(tmp_path) as folder:
        assert execute(make_run(folder, make_plan(repeats=3))) == "complete"


KILLED = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fake_subject import FakeClock, FakeSubject, make_plan, make_run, open_folder
from specbench.measure.executor import execute

def slow(step):
    print(step, flush=True)
    time.sleep(0.02)

with open_folder(Path(sys.argv[2])) as folder:
    execute(make_run(folder, make_plan(repeats=4), subject=FakeSubject(FakeClock(), on_step=slow)))
"""


def test_kill_nine_loses_at_most_the_trial_in_flight(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", KILLED, here, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 17:  # in the third trial
                break
        time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert [line["trial"] for line in lines(tmp_path)] == [0, 1]
    with ResultsFolder(tmp_path) as folder:
        assert execute(make_run(folder, make_plan(repeats=4))) == "complete"
        analysis = analyze_run(folder.contents.trials, folder.contents.requests, RunContext(planned_trials=4))
    assert [line["trial"] for line in lines(tmp_path)] == [0, 1, 2, 3]
    point = analysis.points[0]
    assert (point.trials, point.requests, point.failed_requests) == (4, 16, 0)
    assert len({line["tokens_sha256"] for line in lines(tmp_path)}) == 1
