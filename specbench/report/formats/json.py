"""``analysis.json``: the full schema, indented, keys in the order of the record types."""

from __future__ import annotations

from collections.abc import Sequence

from specbench import encoding
from specbench.records import Analysis


def render(analysis: Analysis) -> str:
    """The analysis as JSON text, with a newline at its end.

    :raises ValueError: a NaN or an infinity is in it.
    """
    return encoding.dumps(analysis, indent=2) + "\n"


def render_several(runs: Sequence[tuple[str, Analysis]]) -> str:
    """A list of analyses, in the order given.

    :raises ValueError: as :func:`render`.
    """
    return encoding.dumps([analysis for _, analysis in runs], indent=2) + "\n"
