"""How much a piece of code does, counted: the same on a busy machine and on a fast one, which no time is."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any


class TooManyCallsError(AssertionError):
    """The code went over the calls it was given, and was stopped there."""


def count_calls(run: Callable[[], object], limit: int | None = None) -> int:
    """Python and C functions that ``run`` calls on this thread.

    :param limit: stop it beyond so many, so that what never ends fails.
    """
    calls = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if limit is not None and calls > limit:
            raise TooManyCallsError(f"more than {limit} calls")

    was_enabled = gc.isenabled()
    gc.disable()  # whoever listens to collections would be counted
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
        if was_enabled:
            gc.enable()
    return calls
