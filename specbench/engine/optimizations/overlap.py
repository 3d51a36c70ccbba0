"""Toggle: whether a step is launched before the host has read the one before. See ``docs/optimizations``."""

from __future__ import annotations

from specbench.engine.optimizations.base import Exactness, Toggle, Variant

TOGGLE = Toggle(
    name="overlap",
    summary="whether step n + 1 is launched before step n is read",
    choice_point="overlap",
    variants={
        "off": Variant(
            "launch a step, wait for its tokens, then prepare the next one",
            "specbench.engine.overlap:build_off",
        ),
        "on": Variant(
            "prepare and launch the next step from device state while one runs, then wait for that one's tokens",
            "specbench.engine.overlap:build_on",
        ),
    },
    baseline="off",
    recommended="on",
    # Host and device share cores and interpreter on a CPU: there it promises the order, not the speed.
    production={"cpu": "off"},
    in_default_study=False,
    source="overlap scheduling of LLM inference engines, which hides the host's work behind the device's",
    exactness=Exactness.NUMERICALLY_EQUIVALENT,
    exactness_reason="an end that the host has not seen yet costs one more step, and others share steps differently",
    step_preserving=False,
)
