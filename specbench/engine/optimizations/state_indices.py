"""Toggle: how the device learns which slot's recurrent state each request of a step uses."""

from __future__ import annotations

from specbench.engine.optimizations.base import Exactness, Toggle, Variant

TOGGLE = Toggle(
    name="state_indices",
    summary="how recurrent-state indices reach the device",
    choice_point="state_indices",
    variants={
        "per_request": Variant(
            "read one scalar and write one element of the staged indices a request, then copy them",
            "specbench.engine.state_indices:build_per_request",
        ),
        "bulk": Variant(
            "convert the slots and the padding mask of a step as one list, and copy them once",
            "specbench.engine.state_indices:build_bulk",
        ),
    },
    baseline="per_request",
    recommended="bulk",
    source="per-request state indices of the cache managers for hybrid models in LLM inference engines",
    exactness=Exactness.BIT_IDENTICAL,
    step_preserving=True,
    shared="specbench.engine.state_indices:build_buffers",
    needs_recurrent_state=True,
)
