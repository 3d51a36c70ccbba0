"""Messages survive the pipe; settings of another commit are understood or refused, never dropped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.downloads import DownloadError
from specbench.engine.config import AcceptanceSpec, DrafterSpec, EngineConfig, ModelSpec
from specbench.engine.sampling.params import SamplingParams
from specbench.errors import EngineError, InputError, PromptTooLongError
from specbench.measure.wire import MAGIC, Channel, pack_error, pack_settings, unpack_error, unpack_settings


@pytest.fixture
def pipe() -> Iterator[tuple[int, Channel]]:
    """The writing descriptor and a channel that reads what is written."""
    read_fd, write_fd = os.pipe()
    channel = Channel(read_fd, write_fd)
    yield write_fd, channel
    channel.close()


def test_a_message_comes_back_as_it_was_sent(pipe: tuple[int, Channel]) -> None:
    _, channel = pipe
    message = {"op": "x", "ids": list(range(2000)), "text": "é\n\0", "none": None}
    assert channel.send(message)
    assert channel.send({"next": 1})
    assert channel.receive() == message
    assert channel.receive() == {"next": 1}


def test_noise_before_the_first_message_is_skipped_only_where_asked(pipe: tuple[int, Channel]) -> None:
    write_fd, channel = pipe
    noise = b"welcome to this machine\n\0sb" + MAGIC[:2]
    os.write(write_fd, noise)
    channel.send({"a": 1})
    assert channel.receive(skip_noise=True) == {"a": 1}
    os.write(write_fd, noise)
    with pytest.raises(EngineError, match="expected a message"):
        channel.receive()


def test_a_torn_message_reads_as_the_end() -> None:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, MAGIC + b"\x10\0\0\0{")
    os.close(write_fd)
    channel = Channel(read_fd, None)
    assert channel.receive() is None
    channel.close()


def test_nobody_reading_is_told_and_no_exception() -> None:
    read_fd, write_fd = os.pipe()
    other_read, other_write = os.pipe()
    os.close(read_fd)
    channel = Channel(other_read, write_fd)
    assert not channel.send({"a": 1})
    channel.close()
    os.close(other_write)


@pytest.mark.parametrize(
    "error",
    [
        PromptTooLongError("too long", where="request 3", hint="shorten it"),
        DownloadError("no network"),
        EngineError("it broke", where="step 3"),
    ],
)
def test_an_error_keeps_its_class_and_words(error: EngineError) -> None:
    again = unpack_error(pack_error(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


def test_an_error_only_the_other_commit_knows_keeps_its_exit_code() -> None:
    packed = {**pack_error(InputError("odd")), "kind": "ErrorOfTomorrow"}
    assert type(unpack_error(packed)) is InputError


def test_a_defect_arrives_as_the_engine_s_failure() -> None:
    again = unpack_error(pack_error(ZeroDivisionError("division by zero")))
    assert type(again) is EngineError
    assert again.what == "ZeroDivisionError: division by zero"


CONFIGS = st.builds(
    EngineConfig,
    model=st.builds(ModelSpec, st.just("tiny"), st.sampled_from(["auto", "random"]), st.integers(0, 9)),
    device=st.sampled_from(["cpu", "cuda"]),
    max_seq_len=st.integers(1, 4096),
    max_batch_size=st.integers(1, 64),
    num_blocks=st.integers(1, 64),
    dtype=st.sampled_from(["bfloat16", "float32"]),
    optimizations=st.lists(st.tuples(st.just("overlap"), st.sampled_from(["off", "on"])), max_size=1).map(tuple),
    num_threads=st.none() | st.integers(1, 8),
    drafter=st.builds(
        DrafterSpec, st.just("ngram"), st.integers(0, 8), st.lists(st.tuples(st.just(3), st.just(2))).map(tuple)
    ),
    acceptance=st.builds(AcceptanceSpec, st.just("forced"), rates=st.lists(st.floats(0, 1)).map(tuple)),
)


def through_json(packed: Any) -> Any:
    read_fd, write_fd = os.pipe()
    channel = Channel(read_fd, write_fd)
    try:
        channel.send(packed)
        return channel.receive()
    finally:
        channel.close()


@given(CONFIGS)
def test_an_engine_configuration_survives(config: EngineConfig) -> None:
    assert unpack_settings(EngineConfig, through_json(pack_settings(config)), "engine") == config


def test_sampling_parameters_survive() -> None:
    params = SamplingParams(0.7, 5, 0.9, seed=2**62, max_tokens=3, ignore_eos=True, stop_token_ids=(3, 4))
    assert unpack_settings(SamplingParams, through_json(pack_settings(params)), "sampling") == params


@dataclass(frozen=True)
class Inner:
    kept: int = 1


@dataclass(frozen=True)
class InnerOfTomorrow:
    kept: int = 1
    fresh: str = "plain"


@dataclass(frozen=True)
class Old:
    size: int
    level: int = 3
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class New:
    size: int
    level: int = 5
    speed: float = 1.0
    inner: InnerOfTomorrow = field(default_factory=InnerOfTomorrow)


@dataclass(frozen=True)
class Demanding:
    size: int
    colour: str


def test_a_field_the_other_commit_lacks_may_be_left_at_its_default() -> None:
    assert unpack_settings(Old, pack_settings(New(2)), "x") == Old(2, level=5)


def test_a_default_that_changed_between_the_commits_is_sent() -> None:
    assert asdict(unpack_settings(New, pack_settings(Old(2)), "x"))["level"] == 3


@pytest.mark.parametrize(
    ("settings", "name", "where"),
    [
        (New(2, speed=2.0), "Old.speed, which is 2.0", "x:"),
        (New(2, inner=InnerOfTomorrow(fresh="odd")), "fresh", "x.inner"),
    ],
)
def test_a_chosen_field_the_other_commit_lacks_is_refused(settings: New, name: str, where: str) -> None:
    with pytest.raises(InputError, match=name) as caught:
        unpack_settings(Old, pack_settings(settings), "x")
    assert str(caught.value).startswith(where)


def test_a_field_the_other_commit_needs_is_named() -> None:
    with pytest.raises(InputError, match="colour"):
        unpack_settings(Demanding, pack_settings(Old(2, level=3)) | {"default": {}}, "x")
