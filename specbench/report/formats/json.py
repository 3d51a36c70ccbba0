"""``analysis.json``: the full schema, indented, keys in the order of the record types."""

from __future__ import annotations

from specbench import encoding
from specbench.records import Analysis


def render(analysis: Analysis) -> str:
    """The analysis as JSON text, with a newline at its end.

    :raises ValueError: a NaN or an infinity is in it.
    """
    return encoding.dumps(analysis, indent=2) + "\n"
