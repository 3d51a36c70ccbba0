"""Toggle: how the requests' sampling parameters reach the device each step. See ``docs/optimizations``."""

from __future__ import annotations

from specbench.engine.optimizations.base import Exactness, Toggle, Variant

TOGGLE = Toggle(
    name="sampling_params",
    summary="how sampling parameters reach the device",
    choice_point="sampling_params",
    variants={
        "refill": Variant(
            "each sampled step, list every row's temperature, top_k and top_p on the host and copy six buffers",
            "specbench.engine.sampling.refill:build_refill",
        ),
        "signature": Variant(
            "refill a group of buffers only when its values, or the rows that hold them, differ from what is there",
            "specbench.engine.sampling.signature:build_signature",
        ),
        "device_gather": Variant(
            "keep parameters on the device by slot, send only slots that changed, gather the rows there each step",
            "specbench.engine.sampling.device_gather:build_device_gather",
        ),
    },
    baseline="refill",
    recommended="signature",
    source="per-step sampling-parameter buffers of one-model speculative samplers in LLM inference engines",
    exactness=Exactness.BIT_IDENTICAL,
    step_preserving=True,
    shared="specbench.engine.sampling.buffers:build_buffers",
)
