"""One result or several in a format of the registry."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from specbench.records import Analysis
from specbench.registry import FORMATS

Renderer = Callable[[Analysis], str]
SeveralRenderer = Callable[[Sequence[tuple[str, Analysis]]], str]


def render_runs(name: str, runs: Sequence[tuple[str, Analysis]]) -> str:
    """Named results in the format ``name``: one as it is, several together.

    A format's module joins several in its ``render_several``; the texts of one that has none follow each other.

    :raises UnknownNameError: no such format.
    """
    render: Renderer = FORMATS.load(name)
    if len(runs) == 1:
        return render(runs[0][1])
    module = importlib.import_module(FORMATS[name].target.partition(":")[0])
    several: SeveralRenderer | None = getattr(module, "render_several", None)
    return several(runs) if several is not None else "\n".join(render(analysis) for _, analysis in runs)
