"""Toggle: how much of a step's inputs the host builds anew. See ``docs/optimizations``."""

from __future__ import annotations

from specbench.engine.optimizations.base import Exactness, Toggle, Variant

TOGGLE = Toggle(
    name="input_prep",
    summary="how much of a step's inputs is built anew",
    choice_point="input_prep",
    variants={
        "rebuild": Variant(
            "visit every request each step; build and copy positions, KV lengths, slots and block offsets",
            "specbench.engine.rebuild_inputs:build_rebuild",
        ),
        "steady_state": Variant(
            "while the batch stays the same, advance positions on the device and send only what changed; not with a "
            "drafter",
            "specbench.engine.steady_state:build_steady_state",
        ),
    },
    baseline="rebuild",
    recommended="steady_state",
    source="host preparation of pure decode steps in LLM inference engines with overlapped scheduling",
    exactness=Exactness.BIT_IDENTICAL,
    step_preserving=True,
)
