"""Figures computed by hand."""

from __future__ import annotations

import hashlib

import pytest

from specbench.device.tracing import Span
from specbench.measure import telemetry
from specbench.records import Evidence, RangeTimes, RequestRecord, StepRecord, StepTable, TrialRecord


def step(output_ns: int, **changes: object) -> StepRecord:
    values = {
        "step": 1, "num_context": 0, "num_generation": 2, "num_context_tokens": 0, "draft_len": 0, "num_committed": 0,
        "num_first_tokens": 0, "num_target_steps": 2, "drafted": (), "accepted": (), "eligible": (), "host_start_ns": 0,
        "launch_ns": 0, "device_start_ns": 0, "device_end_ns": 0, "output_ns": output_ns,
    }  # fmt: skip
    return StepRecord(**{**values, **changes})  # type: ignore[arg-type]


def trial(steps: list[StepRecord], busy: RangeTimes | None, ranges: dict[str, RangeTimes], wall_ns: int) -> TrialRecord:
    return TrialRecord(
        trial=0, point=0, segment=0, pass_=0, mask=None, seed=0, attempt=0, status="complete", started_utc="",
        variant="base", axes={}, label="natural", subject={}, wall_ns=wall_ns, planned_requests=1, committed_tokens=0,
        tokens_sha256=None, output_tokens_per_s=None, acceptance_length=None, steps=StepTable.of(steps),
        device_busy=busy, ranges=ranges, evidence=Evidence(),
    )  # fmt: skip


def test_step_time_splits_into_device_exposed_and_idle() -> None:
    # wall 0..1000. Device busy 200..500 and 600..900 (300 + 300, of it 850..900 twice).
    # Host: schedule 100..250 (100 exposed, 50 hidden), prepare_inputs 480..620 with launch 590..620 inside it
    # (exposed: 500..600), update 880..950 (50 exposed), wait_output 250..480 (no preparation).
    busy = RangeTimes("device", [200, 600, 850], [500, 900, 900])
    ranges = {
        "schedule": RangeTimes("host", [100], [250]),
        "prepare_inputs": RangeTimes("host", [480], [620]),
        "launch": RangeTimes("host", [590], [620]),
        "wait_output": RangeTimes("host", [250], [480]),
        "update": RangeTimes("host", [880], [950]),
        "target_forward": RangeTimes("device", [0], [1000]),
    }
    times = telemetry.split_step_time(trial([step(500), step(1000)], busy, ranges, 1000))
    assert times is not None
    assert times.device == 600
    assert times.host_total == 150 + 140 + 70
    assert times.host_exposed == 100 + 100 + 50
    assert times.other_idle == 1000 - 600 - 250
    assert times.per_step_ms("device") == 600 / 2 / 1e6
    parts = sum(times.per_step_ms(name) or 0 for name in ("device", "host_exposed", "other_idle"))
    assert parts == pytest.approx(times.per_step_ms("wall"), abs=0)


def test_what_lies_outside_the_window_does_not_count() -> None:
    busy = RangeTimes("device", [0, 900], [100, 5000])
    ranges = {"schedule": RangeTimes("host", [100, 1000], [200, 3000])}
    times = telemetry.split_step_time(trial([step(1000)], busy, ranges, 1000))
    assert times is not None
    assert (times.device, times.host_total, times.host_exposed, times.other_idle) == (200, 100, 100, 700)


def test_no_device_times_is_none_not_zero() -> None:
    assert telemetry.split_step_time(trial([step(1000)], None, {}, 1000)) is None
    assert telemetry.split_step_time(trial([], RangeTimes("device", [], []), {}, 1000)) is None


def test_full_batch_leaves_ramp_and_tail_out() -> None:
    steps = [
        step(100, num_context=1, num_generation=0, num_first_tokens=1, num_target_steps=0),  # ramp: one of two slots
        # Still ramp: both slots are taken, and the second prompt of the first fill is computed.
        step(250, num_context=1, num_generation=1, num_first_tokens=1, num_committed=3, num_target_steps=1),
        step(400, num_committed=5),
        step(500, num_committed=4, num_target_steps=1),  # one of two had ended: its slot is taken for nothing
        # A request took its place: its prefill counts.
        step(800, num_context=1, num_generation=1, num_first_tokens=1, num_committed=2, num_target_steps=1),
        step(850, num_committed=3),
        step(900, num_generation=1, num_committed=2, num_target_steps=1),  # tail
    ]
    full = telemetry.full_batch(StepTable.of(steps), slots=2)
    assert (full.steps, full.tokens, full.wall_ns) == (3, 5 + 3 + 3, 150 + 300 + 50)
    assert full.tokens_per_s == 11 / 500e-9
    assert full.mean_active == 2.0


def test_a_prompt_that_waits_for_rows_keeps_its_slot_busy() -> None:
    steps = [
        step(100, num_occupied=2),
        step(200, num_generation=1, num_target_steps=1, num_committed=3, num_occupied=2),  # no rows left for a prompt
        step(300, num_generation=1, num_target_steps=1, num_committed=3, num_occupied=1),  # nobody waits: tail
        step(400, num_target_steps=1, num_committed=3, num_occupied=2),  # one had ended
    ]
    full = telemetry.full_batch(StepTable.of(steps), slots=2)
    assert (full.steps, full.tokens, full.wall_ns) == (2, 3, 200)
    assert full.mean_active == (2 + 1) / 2


def test_full_batch_of_a_file_without_occupied_slots() -> None:
    table = StepTable.of([step(100, num_occupied=2), step(200, num_occupied=2)])
    del table.columns["num_occupied"]
    assert telemetry.full_batch(table, slots=2).steps == 2
    assert table.rows()[0].num_occupied == 0


def test_full_batch_without_such_steps_is_none() -> None:
    full = telemetry.full_batch(
        StepTable.of([step(100, num_generation=1, num_target_steps=1, num_committed=2)]), slots=2
    )
    assert (full.tokens_per_s, full.mean_active) == (None, None)
    assert telemetry.full_batch(StepTable({}), slots=2).tokens_per_s is None


def test_acceptance_by_position() -> None:
    # K = 3 with four requests: accepted 3, 1, 0 and 2 tokens; then K = 1 with two: accepted 1 and 0.
    steps = [
        step(1, num_generation=4, num_target_steps=4, num_committed=3 + 1 + 0 + 2 + 4, draft_len=3,
             drafted=(4, 4, 3), eligible=(4, 3, 2), accepted=(3, 2, 1)),
        step(2, num_target_steps=2, num_committed=3, draft_len=1, drafted=(2,), eligible=(2,), accepted=(1,)),
    ]  # fmt: skip
    found = telemetry.count_acceptance([StepTable.of(steps[:1]), StepTable.of(steps[1:])])
    assert found.length == 13 / 6
    assert found.conditional == [4 / 6, 2 / 3, 1 / 2]
    # Positions 2 and 3 exist in the four requests of the first step alone.
    assert found.joint == [4 / 6, 2 / 4, 1 / 4]
    assert found.drafted == (6, 4, 3)
    assert all(accepted <= drafted for accepted, drafted in zip(found.accepted, found.drafted, strict=True))


def test_an_end_inside_a_draft_moves_no_rate() -> None:
    # K = 3. One request accepts all three; the other ends with its first accepted token, so that positions 2 and 3
    # were never open to it.
    ended = step(
        1, num_committed=4 + 1, draft_len=3, drafted=(2, 1, 1), eligible=(2, 1, 1), accepted=(2, 1, 1), opened=(2, 1, 1)
    )
    # One request rejects at position 2: position 3 was open, and was lost.
    rejected = step(
        2, num_generation=1, num_target_steps=1, num_committed=2, draft_len=3, drafted=(1, 1, 1), eligible=(1, 1, 0),
        accepted=(1, 0, 0), opened=(1, 1, 1),
    )  # fmt: skip
    found = telemetry.count_acceptance([StepTable.of([ended, rejected])])
    assert found.opened == (3, 2, 2)
    assert found.joint == [3 / 3, 1 / 2, 1 / 2]
    assert found.conditional == [3 / 3, 1 / 2, 1 / 1]
    assert found.joint[2] == pytest.approx(found.conditional[0] * found.conditional[1] * found.conditional[2])  # type: ignore[operator]


def test_joint_rate_of_steps_that_do_not_tell_what_was_open() -> None:
    told = step(1, draft_len=2, drafted=(2, 2), eligible=(2, 1), accepted=(1, 1), opened=(2, 1))
    silent = step(2, draft_len=2, drafted=(2, 2), eligible=(2, 1), accepted=(1, 1))
    plain = step(3)
    mixed = StepTable.of([told, silent, plain])
    assert telemetry.count_acceptance([mixed]).opened == (4, 3)
    del mixed.columns["opened"]
    assert telemetry.count_acceptance([mixed]).opened == (4, 4)
    assert mixed.rows()[0].opened == ()


def test_acceptance_is_weighted_by_step_not_by_request() -> None:
    long = [step(i, num_target_steps=1, num_committed=1) for i in range(9)]
    short = [step(9, num_target_steps=1, num_committed=5)]
    assert telemetry.count_acceptance([StepTable.of(long + short)]).length == 14 / 10


def test_acceptance_without_steps_is_none() -> None:
    assert telemetry.count_acceptance([]).length is None
    nobody = [step(1, draft_len=1, drafted=(0,), eligible=(0,), accepted=(0,))]
    assert telemetry.count_acceptance([StepTable.of(nobody)]).conditional == [None]


def request(**changes: object) -> RequestRecord:
    values = {
        "trial": 0, "request_id": "r", "category": None, "prompt_tokens": 3, "output_tokens": 7, "output_sha256": "",
        "finish_reason": "stop", "ttft_ms": 100.0, "e2e_ms": 400.0, "accepted_lengths": [3, 3],
        "chunk_ms": [100.0, 250.0, 400.0], "chunk_sizes": [1, 3, 3],
    }  # fmt: skip
    return RequestRecord(**{**values, **changes})  # type: ignore[arg-type]


def test_latencies() -> None:
    found = telemetry.latencies([request()])
    assert found.ttft == [100.0]
    assert found.e2e == [400.0]
    assert found.tpot == [300.0 / 6]
    assert found.itl == [150.0, 150.0]  # gaps between chunks, not divided by the tokens in them


def test_latencies_of_what_was_cut_or_short() -> None:
    cut = request(finish_reason="abort", e2e_ms=None, chunk_ms=[100.0, 250.0])
    single = request(output_tokens=1, chunk_ms=[100.0], e2e_ms=100.0)
    failed = request(finish_reason="error", ttft_ms=None, e2e_ms=None, chunk_ms=[], output_tokens=0)
    found = telemetry.latencies([cut, single, failed])
    assert (found.ttft, found.tpot, found.itl, found.e2e) == ([100.0, 100.0], [], [150.0], [100.0])


def test_percentiles() -> None:
    found = telemetry.describe([float(value) for value in range(1, 102)])
    assert found is not None
    assert (found.mean, found.p50, found.p90, found.p95, found.p99) == (51.0, 51.0, 91.0, 96.0, 100.0)
    assert telemetry.describe([]) is None


def test_range_statistics_count_what_began_in_the_window() -> None:
    spans = [
        Span("schedule", "host", 900, 1000),
        *(Span("schedule", "host", 1000 + i, 1000 + i + 2000) for i in (0, 1)),
    ]
    spans += [Span("device_step", "device", 1500, 5500), Span("schedule", "host", 9001, 9002)]
    ranges = telemetry.gather_ranges(spans, 1000, 9000)
    assert ranges["schedule"].start_ns == [0, 1]
    stats = telemetry.range_stats([trial([], None, ranges, 8000)])
    assert list(stats) == ["schedule", "device_step"]
    assert (stats["schedule"].calls, stats["schedule"].mean_us, stats["device_step"].p99_us) == (2, 2.0, 4.0)


def test_hash_of_tokens_is_count_then_ids_little_endian() -> None:
    data = b"\x02\x00\x00\x00" + b"\x05\x00\x00\x00" + b"\x00\x01\x00\x00" + b"\x00\x00\x00\x00"
    assert telemetry.hash_tokens([[5, 256], []]) == hashlib.sha256(data).hexdigest()
    # Without the counts these two would be equal.
    assert telemetry.hash_tokens([[5], [256]]) != telemetry.hash_tokens([[5, 256], []])


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([], 0),
        ([1, 2, 3, 4, 5, 6, 7, 8], 0),
        ([9, 8, 7] + [1] * 6, 6),
        ([9, 8, 7] + [1, 2, 3] * 5, 15),
        ([9, 8, 3] + [1, 2, 3] * 5, 16),  # the 3 before it belongs to the pattern
        ([1, 2, 3] * 5 + [4], 0),  # it must still go on at the end
        (list(range(40)) * 5, 0),  # longer than any pattern looked for
        ([1, 2] * 3, 0),  # not often enough
    ],
)
def test_repetition_loops(tokens: list[int], length: int) -> None:
    assert telemetry.repeated_tail(tokens) == length


def test_steps_survive_packing() -> None:
    steps = [
        step(5000, host_start_ns=4000, launch_ns=4100, device_start_ns=4200, device_end_ns=4900, drafted=(1, 2)),
        step(6000, host_start_ns=5000, launch_ns=5100, device_start_ns=5200, device_end_ns=5900, eligible=(2,)),
    ]
    packed = StepTable.of(steps, origin_ns=4000)
    assert packed.columns["output_ns"] == [1000, 2000]
    assert packed.rows()[0].drafted == (1, 2)
    assert packed.rows()[1].device_end_ns == 1900
    assert StepTable.of(packed.rows()).columns == packed.columns
