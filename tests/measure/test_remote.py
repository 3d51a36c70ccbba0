"""An engine in a process of its own gives what one in this process gives, and its process is never left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from arm_process import PACKAGE, Prompts, Settings, run_loop, tiny_config, wait_until_gone

from specbench.device.tracing import RangeRecorder
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import EngineError, InputError, PromptTooLongError, UnknownNameError
from specbench.measure.driver import LoopResult
from specbench.measure.recording import Kept, Window, record_requests, record_window
from specbench.measure.remote import RemoteSubject
from specbench.measure.server_process import ServerProcess
from specbench.measure.subject import BuiltinSubject, Subject
from specbench.measure.wire import pack_settings
from specbench.records import STEP_TIMES

GREEDY = SamplingParams(ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.2, top_k=3, ignore_eos=True)


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteSubject]:
    with RemoteSubject.start(tiny_config(), Settings()) as subject:
        yield subject


@pytest.fixture(scope="module")
def builtin() -> Iterator[BuiltinSubject]:
    recorder = RangeRecorder()
    subject, _ = BuiltinSubject.build(tiny_config(), recorder, recorder)
    yield subject
    subject.close()


def measure(subject: Subject, params: SamplingParams) -> tuple[LoopResult, Window]:
    subject.drain()
    loop = run_loop(subject, Prompts(4, params))
    return loop, record_window(loop, subject.drain(), has_token_ids=True)


def without_times(window: Window) -> dict[str, Any]:
    columns = {name: values for name, values in window.steps.columns.items() if name not in (*STEP_TIMES, "step")}
    return {"hash": window.tokens_sha256, "tokens": window.committed_tokens, "ranges": set(window.ranges), **columns}


def requests_of(loop: LoopResult) -> list[dict[str, Any]]:
    records = [asdict(record) for record in record_requests(loop, 0, 0, Kept(outputs=True))]
    return [{k: v for k, v in record.items() if not k.endswith("_ms")} for record in records]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_steps_tokens_and_acceptance_are_those_of_an_engine_in_this_process(
    remote: RemoteSubject, builtin: BuiltinSubject, params: SamplingParams
) -> None:
    here, there = measure(builtin, params), measure(remote, params)
    assert without_times(here[1]) == without_times(there[1])
    assert requests_of(here[0]) == requests_of(there[0])
    lengths = [length for request in requests_of(there[0]) for length in request["accepted_lengths"]]
    assert max(lengths) > 1  # drafts were accepted, or there was nothing to compare


def test_overlap_gives_the_same_tokens(builtin: BuiltinSubject) -> None:
    with RemoteSubject.start(tiny_config(overlap=True), Settings(), with_ranges=False) as subject:
        loop, window = measure(subject, GREEDY)
    assert window.tokens_sha256 == measure(builtin, GREEDY)[1].tokens_sha256
    assert window.ranges == {}
    assert loop.status == "complete"


def test_times_are_this_process_s_times(remote: RemoteSubject) -> None:
    remote.drain()
    before_ns = time.perf_counter_ns()
    loop = run_loop(remote, Prompts(2, GREEDY))
    found = remote.drain()
    after_ns = time.perf_counter_ns()
    times = [getattr(step, name) for step in found.steps for name in STEP_TIMES]
    times += [time_ns for flight in loop.flights if flight.state for time_ns in flight.state.chunk_times_ns]
    times += [moment for span in [*found.spans, *(found.busy or ())] for moment in (span.start_ns, span.end_ns)]
    assert before_ns < min(times) <= max(times) < after_ns
    assert found.busy


def test_it_says_what_it_is(remote: RemoteSubject, builtin: BuiltinSubject) -> None:
    assert remote.capabilities == builtin.capabilities
    assert remote.facts.fingerprint == builtin.engine.loaded.fingerprint
    assert remote.facts.vocab_size == builtin.engine.loaded.config.vocab_size
    assert remote.num_threads == 1
    about = remote.describe()
    assert about["engine"]["drafter"]["draft_len"] == 2
    assert about["process"]["imported_from"] == str(PACKAGE)
    assert about["process"]["torch"] == remote.torch["version"]


def test_a_refused_request_is_the_engine_s_own_error_and_harms_nothing(remote: RemoteSubject) -> None:
    with pytest.raises(PromptTooLongError, match="has 200 tokens"):
        remote.submit([1] * 200, GREEDY, "long")
    remote.submit([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True), "short")
    with pytest.raises(InputError, match="running"):
        remote.submit([1, 2, 3], GREEDY, "short")
    while remote.has_work:
        remote.advance()


def test_a_cancelled_request_keeps_its_tokens(remote: RemoteSubject) -> None:
    remote.max_steps = 1
    try:
        request = remote.submit([1, 2, 3], SamplingParams(max_tokens=60, ignore_eos=True), "cut")
        for steps in range(1, 4):
            remote.advance()
            assert len(request.chunk_sizes) == steps  # one step each
        kept = list(request.output_token_ids)
        remote.cancel("cut")
    finally:
        remote.max_steps = None
    assert request.finish_reason == "abort"
    assert request.output_token_ids == kept
    while remote.has_work:
        remote.advance()


def test_variants_are_switched_there(remote: RemoteSubject) -> None:
    remote.switch({"sampling_params": "refill"})
    assert remote.describe()["toggles"]["sampling_params"]["variant"] == "refill"
    with pytest.raises(UnknownNameError, match="sampling_params"):
        remote.switch({"sampling_parms": "refill"})


def test_the_margin_of_two_tokens_is_computed_there(remote: RemoteSubject, builtin: BuiltinSubject) -> None:
    from specbench.engine.scoring import logit_margin

    expected = logit_margin(builtin.engine.loaded, [1, 2, 3], 4, 5)
    assert remote.logit_margin([1, 2, 3], 4, 5) == pytest.approx(expected, abs=1e-5)


def test_an_idle_arm_uses_no_processor(remote: RemoteSubject) -> None:
    run_loop(remote, Prompts(2, GREEDY))
    remote.settle()
    deadline = time.monotonic() + 30
    while not rests(remote.process.pid):
        assert time.monotonic() < deadline, "some thread of it goes on computing"


def rests(process: int) -> bool:
    """Whether all of its threads are asleep, each time that is looked in half a second."""
    for _ in range(50):
        threads = (psutil.Process(thread.id).status() for thread in psutil.Process(process).threads())
        if any(status != psutil.STATUS_SLEEPING for status in threads):
            return False
        time.sleep(0.01)
    return True


NOISY = """
import os, sys, threading, time
print("noise from start-up", flush=True)

def chatter():
    while True:
        time.sleep(0.005)
        os.write(1, b"noise ")
        print("more noise", flush=True)
        print("the last words", file=sys.stderr, flush=True)

threading.Thread(target=chatter, daemon=True).start()
"""


def noisy_settings(folder: Path) -> Settings:
    """An interpreter whose start-up prints, and goes on printing."""
    (folder / "sitecustomize.py").write_text(NOISY)
    return Settings(env={"PYTHONPATH": str(folder)})


def test_what_is_printed_there_harms_no_message_and_its_death_is_told(tmp_path: Path) -> None:
    with RemoteSubject.start(tiny_config(), noisy_settings(tmp_path)) as subject:
        run_loop(subject, Prompts(2, GREEDY))
        os.kill(subject.process.pid, signal.SIGKILL)
        with pytest.raises(EngineError) as caught:
            run_loop(subject, Prompts(1, GREEDY))
        assert "was killed by SIGKILL" in caught.value.what
        assert "the last words" in caught.value.what
        assert "memory" in (caught.value.hint or "")
        with pytest.raises(EngineError, match="has ended"):
            subject.advance()


def write_program(path: Path, code: str) -> str:
    """An executable that runs ``code`` with this interpreter, whatever it is started with."""
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}")
    path.chmod(0o755)
    return str(path)


def answering(folder: Path, protocol: str, now: str) -> str:
    """A program that takes the server's place with another protocol or another clock."""
    return write_program(
        folder / "python",
        f"""
        import sys, time
        sys.path.insert(0, {str(PACKAGE.parent)!r})
        from specbench.measure.wire import PROTOCOL, Channel
        channel = Channel(0, 1)
        hello = {{"protocol": {protocol}, "specbench": "9.9", "imported_from": "elsewhere"}}
        while request := channel.receive():
            channel.send(hello if request["op"] == "hello" else {{"now_ns": {now}}})
        """,
    )


def test_another_protocol_is_refused_with_both_numbers(tmp_path: Path) -> None:
    python = answering(tmp_path, "PROTOCOL + 7", "0")
    with pytest.raises(InputError, match=r"9\.9 \(elsewhere\) speaks protocol 8, this one speaks 1"):
        ServerProcess(Settings(python=python))


@pytest.mark.parametrize("hours", [-1, 1])
def test_another_clock_is_refused(tmp_path: Path, hours: int) -> None:
    python = answering(tmp_path, "PROTOCOL", f"time.perf_counter_ns() + {hours} * 3600 * 10**9")
    with pytest.raises(EngineError, match="time namespace"):
        ServerProcess(Settings(python=python))


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be started: No such file"):
        ServerProcess(Settings(python=str(tmp_path / "python")))


def test_an_interpreter_without_specbench(tmp_path: Path) -> None:
    python = write_program(
        tmp_path / "python",
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-I', '-S', *sys.argv[1:]])",
    )
    with pytest.raises(InputError, match="No module named 'specbench'") as caught:
        ServerProcess(Settings(python=python))
    assert "worktree" in (caught.value.hint or "")


def test_a_worktree_from_before_there_was_a_server(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="subject_server"):
        ServerProcess(Settings(worktree=str(tmp_path)))


def test_an_interpreter_that_dies_at_once(tmp_path: Path) -> None:
    python = write_program(tmp_path / "python", "raise SystemExit('cannot load libwarp.so')")
    with pytest.raises(EngineError, match=r"ended with status 1; the last it said:\n    cannot load libwarp.so"):
        ServerProcess(Settings(python=python))


def test_a_configuration_it_cannot_use_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_settings(tiny_config())
    packed["chosen"]["warp_factor"] = 9
    monkeypatch.setattr("specbench.measure.remote.pack_settings", lambda _: packed)
    before = set(psutil.Process().children())
    with pytest.raises(InputError, match=r"EngineConfig\.warp_factor, which is 9"):
        RemoteSubject.start(tiny_config(), Settings())
    assert set(psutil.Process().children()) <= before


def test_an_interrupted_exchange_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerProcess(Settings())
    with monkeypatch.context() as patch:

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(server._channel, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            server.ask("now")
    with pytest.raises(EngineError, match="has ended"):
        server.ask("now")  # the answer still in the pipe is not taken for this one's
    server.close()
    assert wait_until_gone(server.pid)


def test_one_that_is_forgotten_is_killed() -> None:
    server = ServerProcess(Settings())
    pid = server.pid
    os.kill(pid, signal.SIGINT)  # Ctrl-C is for the measuring process
    assert server.ask("now")["now_ns"]
    del server
    gc.collect()
    assert wait_until_gone(pid)


PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from arm_process import Settings
from specbench.measure.server_process import ServerProcess
server = ServerProcess(Settings())
print(server.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_dies_with_the_process_that_started_it(number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.communicate(timeout=30)
    assert wait_until_gone(pid)
