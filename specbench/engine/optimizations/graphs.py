"""Toggle: whether steps are captured once and replayed. See ``docs/optimizations``."""

from __future__ import annotations

from specbench.engine.optimizations.base import Exactness, Toggle, Variant

TOGGLE = Toggle(
    name="graphs",
    summary="whether decode steps are captured and replayed",
    choice_point="graphs",
    variants={
        "off": Variant(
            "run every step's program operator by operator",
            "specbench.engine.captured_steps:build_eager",
        ),
        "captured": Variant(
            "replay a program captured for the step's batch size, K and greedy or not, padding the batch to that size",
            "specbench.engine.captured_steps:build_captured",
        ),
    },
    baseline="off",
    recommended="captured",
    production={"cpu": "off", "sim": "off"},
    in_default_study=False,
    source="CUDA graphs of decode steps in LLM inference engines, captured at start by batch size",
    exactness=Exactness.NUMERICALLY_EQUIVALENT,
    exactness_reason="a batch padded to a captured size has other shapes, and sums go in another order",
    step_preserving=False,
)
