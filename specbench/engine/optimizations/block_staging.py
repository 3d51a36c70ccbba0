"""Toggle: how many columns of block offsets are staged and copied to the device. See ``docs/optimizations``."""

from __future__ import annotations

from specbench.engine.optimizations.base import Exactness, Toggle, Variant

TOGGLE = Toggle(
    name="block_staging",
    summary="how many columns of block offsets are sent",
    choice_point="block_staging",
    variants={
        "full": Variant(
            "stage and copy a column for every block that a sequence of max_seq_len may own",
            "specbench.engine.block_staging:build_full",
        ),
        "bounded": Variant(
            "stage and copy the columns that the longest sequence of the batch uses; all of them with a drafter",
            "specbench.engine.block_staging:build_bounded",
        ),
    },
    baseline="full",
    recommended="bounded",
    source="block offsets of paged attention in LLM inference engines, staged as wide as the longest sequence allowed,"
    " whatever sequences there are",
    exactness=Exactness.BIT_IDENTICAL,
    step_preserving=True,
)
