"""Accepted lengths out of results folders, damaged ones too, and requests that replay them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench import encoding
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import ResultsError
from specbench.measure.driver import PlannedRequest
from specbench.measure.replay import ReplaySource, read_accepted_lengths
from specbench.records import Evidence, RequestRecord, StepTable, TrialRecord


def trial(number: int, **changes: Any) -> TrialRecord:
    record = TrialRecord(
        trial=number,
        point=0,
        segment=0,
        pass_=0,
        mask=None,
        seed=0,
        attempt=0,
        status="complete",
        started_utc="2026-01-31T12:00:00Z",
        variant="base",
        axes={},
        label="natural",
        subject={},
        wall_ns=1,
        planned_requests=1,
        committed_tokens=1,
        tokens_sha256=None,
        output_tokens_per_s=None,
        acceptance_length=None,
        steps=StepTable.of(()),
        device_busy=None,
        ranges={},
        evidence=Evidence(),
    )
    return replace(record, **changes)


def request(trial: int, name: str, lengths: Sequence[int], **changes: Any) -> RequestRecord:
    record = RequestRecord(
        trial=trial,
        request_id=name,
        category=None,
        prompt_tokens=3,
        output_tokens=1 + sum(lengths),
        output_sha256="",
        finish_reason="length",
        ttft_ms=1.0,
        e2e_ms=2.0,
        accepted_lengths=list(lengths),
    )
    return replace(record, **changes)


def write(folder: Path, trials: Sequence[TrialRecord], requests: Sequence[RequestRecord]) -> Path:
    for name, records in (("trials.jsonl", trials), ("requests.jsonl", requests)):
        (folder / name).write_text("".join(encoding.dumps(record) + "\n" for record in records))
    return folder


def test_the_first_complete_trial_is_read(tmp_path: Path) -> None:
    trials = [trial(0, status="interrupted"), trial(0, attempt=1), trial(1)]
    requests = [
        request(0, "a", (9,)),
        request(0, "a", (3, 1), attempt=1),
        request(0, "b", (), attempt=1, finish_reason="stop"),
        request(1, "a", (7, 7)),
    ]
    assert read_accepted_lengths(write(tmp_path, trials, requests)) == {"a": (3, 1), "b": ()}


def test_slices_of_a_comparison_add_up_and_only_the_baseline_counts(tmp_path: Path) -> None:
    trials = [
        trial(0, comparison=0, arm="B", point=1),
        trial(1, comparison=0, arm="A"),
        trial(2, comparison=0, arm="A", segment=1),
        trial(3, comparison=1, arm="A", injected={"A": {"kind": "delay", "us": 300}}),
        trial(4, comparison=0, arm="A", point=2),
    ]
    requests = [
        request(0, "a", (9,)),
        request(1, "a", (2,)),
        request(2, "b~2", (4, 1)),
        request(3, "c", (5,)),
        request(4, "d", (6,)),
    ]
    assert read_accepted_lengths(write(tmp_path, trials, requests)) == {"a": (2,), "b~2": (4, 1)}


def test_requests_that_did_not_end_are_left_out(tmp_path: Path) -> None:
    requests = [
        request(0, "a", (2, 3)),
        request(0, "b", (2,), finish_reason="abort"),
        request(0, "c", (), output_tokens=0, finish_reason="error"),
    ]
    assert read_accepted_lengths(write(tmp_path, [trial(0)], requests)) == {"a": (2, 3)}


def test_a_torn_last_line_is_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, [trial(0)], [request(0, "a", (2, 3))])
    for name in ("trials.jsonl", "requests.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"trial": 1, "req')
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert read_accepted_lengths(folder) == {"a": (2, 3)}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("missing", ["trials.jsonl", "requests.jsonl"])
def test_a_folder_without_its_files_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    folder = write(tmp_path, [trial(0)], [request(0, "a", (2,))])
    (folder / missing).unlink()
    with pytest.raises(ResultsError, match=f"{missing} is not there") as caught:
        read_accepted_lengths(folder)
    assert caught.value.where == str(folder)


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"nowhere: trials.jsonl is not there"):
        read_accepted_lengths(tmp_path / "nowhere")


def test_a_run_that_was_not_finished_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, [trial(0, status="interrupted"), trial(1, status="failed")], [request(0, "a", (2,))])
    with pytest.raises(ResultsError, match="none of its 2 trials is complete") as caught:
        read_accepted_lengths(folder)
    assert f"--resume {folder}" in str(caught.value)


def test_a_trial_in_which_nothing_ended_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, [trial(3)], [request(3, "a", (2,), finish_reason="abort")])
    with pytest.raises(ResultsError, match="no request of trial 3 ended"):
        read_accepted_lengths(folder)


def test_steps_that_nobody_counted_are_refused(tmp_path: Path) -> None:
    """A server tells how many tokens it sent, not which step committed them."""
    folder = write(tmp_path, [trial(0)], [request(0, "a", (), output_tokens=12)])
    with pytest.raises(ResultsError, match=r"request a has 12 output tokens, but .* make 1"):
        read_accepted_lengths(folder)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, [trial(0)], [request(0, "a", (2,)), request(0, "b", (2,))])
    path = folder / "requests.jsonl"
    path.write_text("{broken\n" + path.read_text())
    with pytest.raises(ResultsError, match=r"requests.jsonl:1: the line is damaged"):
        read_accepted_lengths(folder)


class Source:
    """One conversation of two turns; the second's prompt holds the first's output."""

    num_turns = (2,)

    def build(self, conversation: int, turn: int, previous_outputs: Sequence[Sequence[int]]) -> PlannedRequest:
        prompt = [1, 2, *(token for output in previous_outputs for token in output)]
        params = SamplingParams(temperature=0.5, seed=turn, max_tokens=99, stop_token_ids=(4,))
        return PlannedRequest(f"c/{turn}", conversation, turn, "chat", prompt, params)


def test_a_replay_source_adds_lengths_and_ends_where_the_recording_did() -> None:
    source = ReplaySource(Source(), {"c/0": [3, 2], "c/1": ()})
    assert list(source.num_turns) == [2]
    first, second = source.build(0, 0, ()), source.build(0, 1, [[8, 9]])
    assert first.params == SamplingParams(temperature=0.5, seed=0, max_tokens=6, ignore_eos=True, replay_lengths=(3, 2))
    assert (second.params.replay_lengths, second.params.max_tokens, second.params.seed) == ((), 1, 1)
    assert second.prompt_token_ids == [1, 2, 8, 9]
    assert (second.request_id, second.turn, second.category) == ("c/1", 1, "chat")


def test_a_request_that_was_not_recorded_is_refused_by_name() -> None:
    source = ReplaySource(Source(), {"c/0": (3, 2)})
    with pytest.raises(ResultsError, match=r"no accepted lengths were recorded of request c/1") as caught:
        source.build(0, 1, [[8]])
    assert caught.value.where == "acceptance.source"
