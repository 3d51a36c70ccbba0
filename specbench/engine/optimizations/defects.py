"""Which variants that stand somewhere are known defects, so that whoever shows a figure of theirs can say so."""

from __future__ import annotations

from collections.abc import Mapping

from specbench import registry
from specbench.engine.optimizations.base import Exactness, load_toggle

KNOWN_DEFECT = "KNOWN DEFECT"
"""How they are marked, in red wherever there are colours."""


def known_defects(variants: Mapping[str, object]) -> dict[str, str]:
    """``capture_params=leak`` -> what it does wrong; empty where every variant is in order.

    :param variants: toggle -> variant. What is not registered here, as in results of another version, is left out.
    """
    found = {}
    for name, variant in variants.items():
        toggle = load_toggle(name) if name in registry.OPTIMIZATIONS else None
        if toggle is None or not isinstance(variant, str) or variant not in toggle.variants:
            continue
        if toggle.exactness_of(variant) is Exactness.KNOWN_DEFECT:
            found[f"{name}={variant}"] = toggle.variants[variant].summary
    return found
