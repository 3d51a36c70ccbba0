"""The label of a measurement: what a reader must know before any figure of it. Parts are joined by commas.

One part is of the content; ``SIMULATED`` before it says that the device's times are declared, ``synthetic cache`` after
it that contexts were put into the KV cache and not computed.
"""

from __future__ import annotations

from collections.abc import Iterable

from specbench.workloads.base import NATURAL, SYNTHETIC

FORCED = "forced acceptance"
REPLAYED = "replayed acceptance"
SIMULATED = "SIMULATED"
SYNTHETIC_CACHE = "synthetic cache"
_CONTENT = (FORCED, REPLAYED, SYNTHETIC, NATURAL)
"""From the strongest warning to none."""
_SEPARATOR = ", "


def join_label(content: str, *, simulated: bool = False, synthetic_cache: bool = False) -> str:
    """``SIMULATED, forced acceptance, synthetic cache``."""
    before = [SIMULATED] if simulated else []
    after = [SYNTHETIC_CACHE] if synthetic_cache else []
    return _SEPARATOR.join([*before, content, *after])


def split_label(label: str) -> list[str]:
    """The parts of a label."""
    return label.split(_SEPARATOR)


def strongest(labels: Iterable[str]) -> str:
    """One label for several: the strongest warning about the content, and every mark that one of them bears."""
    parts = {part for label in labels for part in split_label(label)}
    marks = {SIMULATED, SYNTHETIC_CACHE}
    content = next((part for part in _CONTENT if part in parts), None) or min(parts - marks)
    return join_label(content, simulated=SIMULATED in parts, synthetic_cache=SYNTHETIC_CACHE in parts)
