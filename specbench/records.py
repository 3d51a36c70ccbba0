"""Frozen result types that every layer above shares. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class StepRecord:
    """One target step of the engine. Times are ``perf_counter_ns``.

    :param num_context: context requests (prompt chunks) in the step; ``num_generation`` generation requests.
    :param num_context_tokens: prompt token rows in the step.
    :param draft_len: K, the same for every generation request of the step.
    :param num_committed: tokens committed to generation requests, tokens after an end left out.
    :param num_first_tokens: tokens committed by context requests whose prompt ended in this step.
    :param num_target_steps: generation requests that still ran (a request over its end is not counted).
    :param drafted: by draft position 1..K, how many live generation requests proposed a token there.
    :param accepted: by draft position 1..K, how many of those were accepted and committed.
    :param host_start_ns: scheduling began; ``launch_ns`` handed to the device; ``output_ns`` tokens seen by the host.
    :param device_start_ns: the device began the step; ``device_end_ns`` ended it.
    """

    step: int
    num_context: int
    num_generation: int
    num_context_tokens: int
    draft_len: int
    num_committed: int
    num_first_tokens: int
    num_target_steps: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    host_start_ns: int
    launch_ns: int
    device_start_ns: int
    device_end_ns: int
    output_ns: int
