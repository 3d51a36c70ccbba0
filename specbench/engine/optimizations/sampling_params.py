"""Toggle: how the requests' sampling parameters reach the device each step."""

from __future__ import annotations

from specbench.engine.optimizations.base import Exactness, Toggle, Variant

TOGGLE = Toggle(
    name="sampling_params",
    summary="how sampling parameters reach the device",
    choice_point="sampling_params",
    variants={
        "refill": Variant(
            "append every row's parameters to host lists and copy six buffers, each step",
            "specbench.engine.sampling.refill:build_refill",
        ),
        "signature": Variant(
            "copy a group of buffers only when its values, or the rows that hold them, differ from what is there",
            "specbench.engine.sampling.signature:build_signature",
        ),
    },
    baseline="refill",
    recommended="signature",
    source="per-step sampling-parameter buffers of one-model speculative samplers in LLM inference engines",
    exactness=Exactness.BIT_IDENTICAL,
    step_preserving=True,
    shared="specbench.engine.sampling.buffers:build_buffers",
)
