"""The label of a measurement: what a reader must know before any figure of it. Parts are joined by commas.

One part is of the content. ``SIMULATED`` before it says that the device's times are declared, and ``KNOWN DEFECT``
before both that a variant stood which serves wrong tokens; ``synthetic cache`` after it says that contexts were put
into the KV cache and not computed.
"""

from __future__ import annotations

from collections.abc import Iterable

from specbench.engine.optimizations.defects import KNOWN_DEFECT
from specbench.workloads.base import NATURAL, SYNTHETIC

FORCED = "forced acceptance"
REPLAYED = "replayed acceptance"
SIMULATED = "SIMULATED"
SYNTHETIC_CACHE = "synthetic cache"
_CONTENT = (FORCED, REPLAYED, SYNTHETIC, NATURAL)
"""From the strongest warning to none."""
_SEPARATOR = ", "


def join_label(
    content: str, *, known_defect: bool = False, simulated: bool = False, synthetic_cache: bool = False
) -> str:
    """``KNOWN DEFECT, SIMULATED, forced acceptance, synthetic cache``."""
    before = [*([KNOWN_DEFECT] if known_defect else []), *([SIMULATED] if simulated else [])]
    after = [SYNTHETIC_CACHE] if synthetic_cache else []
    return _SEPARATOR.join([*before, content, *after])


def split_label(label: str) -> list[str]:
    """The parts of a label."""
    return label.split(_SEPARATOR)


def strongest(labels: Iterable[str], *, known_defect: bool = False) -> str:
    """One label for several: the strongest warning about the content, and every mark that one of them bears.

    :param known_defect: a variant that serves wrong tokens stood.
    """
    parts = {part for label in labels for part in split_label(label)}
    marks = {KNOWN_DEFECT, SIMULATED, SYNTHETIC_CACHE}
    content = next((part for part in _CONTENT if part in parts), None) or min(parts - marks)
    return join_label(
        content,
        known_defect=known_defect or KNOWN_DEFECT in parts,
        simulated=SIMULATED in parts,
        synthetic_cache=SYNTHETIC_CACHE in parts,
    )
