"""What does not go together with ``device: sim``, which declares its times and computes nothing. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator

from specbench.device.times import SIM
from specbench.errors import UnknownNameError, nearest_hint
from specbench.registry import SIM_PRESETS
from specbench.scenario.places import Issue, shorten
from specbench.scenario.schema import Scenario

FORCED = "forced"
UNUSED_ATTENTION = "torch-gather"
"""What a resolved scenario has for ``engine.attention`` on a device on which no attention runs."""


def find_sim_conflicts(scenario: Scenario) -> Iterator[Issue]:
    """Every conflict; of a device that computes, only that it has no use for declared times."""
    engine = scenario.engine
    if engine.device != SIM:
        if engine.sim is not None:
            what = f"has no effect on device {engine.device}, which takes the time it takes"
            yield Issue(("engine", "sim"), what, "set engine.device to sim, or drop it")
        return
    yield from _times(engine.sim)
    if engine.attention not in ("auto", UNUSED_ATTENTION):
        yield Issue(("engine", "attention"), "has no effect on device sim, which computes no attention", "drop it")
    if scenario.drafter.model is not None:
        what = "has no effect on device sim, which loads no weights and runs no drafter"
        yield Issue(("drafter", "model"), what, "drop it, and declare what a step with drafts takes in engine.sim")
    if scenario.drafter.tree is not None:
        what = "cannot run on device sim, which drafts no tokens and accepts a number of them, not a path in a tree"
        yield Issue(("drafter", "tree"), what, "drop it, and declare what a step with drafts takes in engine.sim")
    yield from _content(scenario)


def _times(sim: object) -> Iterator[Issue]:
    path = ("engine", "sim")
    presets = ", ".join(SIM_PRESETS)
    if sim is None:
        what = "is missing: device sim takes as long as is declared here"
        yield Issue(path, what, f"a preset ({presets}), or five numbers of your own")
    elif isinstance(sim, str) and sim not in SIM_PRESETS:
        what = f"unknown preset {shorten(repr(sim))}; allowed: {presets}, or five numbers of your own"
        yield Issue(path, what, nearest_hint(sim, SIM_PRESETS), UnknownNameError)


def _content(scenario: Scenario) -> Iterator[Issue]:
    """No token comes from a model, so none can be judged, and none can end a request."""
    mode, sampling = scenario.acceptance.mode, scenario.sampling
    if mode != FORCED:
        yield Issue(
            ("acceptance", "mode"),
            f"found {shorten(mode)}; allowed on device sim: forced, since it computes no tokens to judge",
            "acceptance: {mode: forced, length: 1.0}",
        )
    if sampling.ignore_eos is False:
        yield Issue(
            ("sampling", "ignore_eos"),
            "found false; allowed on device sim: true, since its tokens are made up and none is an end",
            "drop it, and set the output length by workload.osl",
        )
    if sampling.stop_token_ids:
        what = "has no meaning on device sim, whose token ids are made up"
        yield Issue(("sampling", "stop_token_ids"), what, "drop it")
