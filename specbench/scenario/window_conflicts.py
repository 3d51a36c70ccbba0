"""What does not go together with ``measure.windows``, whose contexts are put into the cache. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator

from specbench.scenario.places import Issue, describe_value
from specbench.scenario.schema import Scenario

SYNTHETIC = "random_tokens"
REPLAY = "replay"


def find_window_conflicts(scenario: Scenario) -> Iterator[Issue]:
    """Every conflict, in the order of the scenario's keys."""
    windows = scenario.measure.windows
    if windows is None:
        return
    if scenario.acceptance.mode == REPLAY:
        what = "replays whole requests, and measure.windows cuts all of them"
        yield Issue(("acceptance", "mode"), what, "forced acceptance has the same counts in every arm")
    yield from _workload(scenario)
    yield from _ends(scenario)
    if scenario.process is not None:
        what = "an arm in a process of its own cannot be given a filled cache"
        yield Issue(("process",), what, "drop it, or measure.windows")
    if len(set(windows.kv_len)) < len(windows.kv_len):
        yield Issue(("measure", "windows", "kv_len"), "holds a value twice, which makes windows that are the same")
    for key in ("timeout", "segment_requests"):
        if getattr(scenario.measure, key) is not None:
            what = "has no effect under measure.windows, which says how much is measured"
            yield Issue(("measure", key), what, "drop it")


def _workload(scenario: Scenario) -> Iterator[Issue]:
    workload = scenario.workload
    if workload.kind != SYNTHETIC:
        yield Issue(
            ("workload", "kind"),
            f"found {describe_value(workload.kind)}; allowed under measure.windows: {SYNTHETIC}, since contexts are "
            "put into the cache and asked of nobody",
            f"workload: {{kind: {SYNTHETIC}, concurrency: {workload.concurrency}}}",
        )
        return
    reasons = {
        "isl": "measure.windows.kv_len says how long contexts are",
        "osl": "measure.windows.steps says how much is decoded",
        "num_requests": "there is one request a slot",
    }
    for key, reason in reasons.items():
        if getattr(workload, key) is not None:
            yield Issue(("workload", key), f"has no effect under measure.windows: {reason}", "drop it")


def _ends(scenario: Scenario) -> Iterator[Issue]:
    """No request may end while its window is timed."""
    sampling, what = scenario.sampling, "would end requests within a window of measure.windows, whose slots stay full"
    if sampling.ignore_eos is False:
        yield Issue(("sampling", "ignore_eos"), f"false {what}", "drop it")
    if sampling.stop_token_ids:
        yield Issue(("sampling", "stop_token_ids"), what, "drop it")
