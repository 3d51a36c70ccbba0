"""Toggle: how the capture of a sampled step is made to record the sampling operators. See ``docs/optimizations``."""

from __future__ import annotations

from specbench.engine.optimizations.base import Exactness, Toggle, Variant

_CAPTURED = ("graphs=captured",)
"""An override is made for captures; where there are none, no variant that has one means anything."""

TOGGLE = Toggle(
    name="capture_params",
    summary="how captures are made to record sampling",
    choice_point="capture_params",
    variants={
        "clear_after_capture": Variant(
            "warm-up requests carry no parameters and a flag overrides them; clear it in every copy that captured steps"
            " keep once all real captures are done",
            "specbench.engine.capture_params:build_clear_after_capture",
            requires=_CAPTURED,
        ),
        "real_params": Variant(
            "warm-up requests carry sampled parameters of their own; there is no flag",
            "specbench.engine.capture_params:build_real_params",
        ),
        "leak": Variant(
            "clear the flag in the live metadata alone: it lives on in the copies that captured steps keep, and every"
            " sampled request is served at temperature 0.7, top_k 50, top_p 0.9",
            "specbench.engine.capture_params:build_leak",
            Exactness.KNOWN_DEFECT,
            _CAPTURED,
            needs_speculation=True,
        ),
        "clear_at_copy": Variant(
            "clear the flag in a copy when it is made: the step captured as sampled records the argmax",
            "specbench.engine.capture_params:build_clear_at_copy",
            Exactness.KNOWN_DEFECT,
            _CAPTURED,
            needs_speculation=True,
        ),
        "clear_after_warmup": Variant(
            "clear the flag between the workspace round and the real one, which is handed the copies of the first: the"
            " step captured as sampled records the argmax",
            "specbench.engine.capture_params:build_clear_after_warmup",
            Exactness.KNOWN_DEFECT,
            _CAPTURED,
            needs_speculation=True,
        ),
    },
    baseline="clear_after_capture",
    recommended="real_params",
    in_default_study=False,
    source="capture warm-up of one-model speculative samplers in LLM inference engines, and what went wrong in it",
    exactness=Exactness.BIT_IDENTICAL,
    exactness_reason="a known defect serves other parameters than were asked for; the others serve those",
    step_preserving=True,
)
