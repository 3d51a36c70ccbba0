"""``measure.windows``: decoding timed from a KV cache that was filled synthetically. What follows from its two numbers.

Every slot is given a request whose context counts as cached; after :data:`LEAD_STEPS` steps, ``steps`` are timed. No
request may end in between, so that each is given room for all tokens these steps can commit.
"""

from __future__ import annotations

from specbench.scenario.measure_schema import Measure, Windows
from specbench.scenario.schema import Scenario

KV_LEN_KEY = "measure.windows.kv_len"
"""Coordinate of a window's point."""
LEAD_STEPS = 2
"""Steps before the timed ones, in no figure: the first after a fill prepares everything anew, and has no drafts yet."""
SPARE_STEPS = 2
"""Room beyond the timed steps, so that nothing ends with the last of them."""
WARM_UP_STEPS = 8


def most_output_tokens(windows: Windows, draft_len: int) -> int:
    """Tokens that a request of a window may commit, K + 1 a step."""
    return (windows.steps + LEAD_STEPS + SPARE_STEPS) * (draft_len + 1)


def needed_seq_len(windows: Windows, draft_len: int) -> int:
    """Tokens that the longest request of the windows may reach."""
    return max(windows.kv_len) + most_output_tokens(windows, draft_len)


def at_kv_len(scenario: Scenario, kv_len: int) -> Scenario:
    """``scenario`` with the one window of ``kv_len``."""
    assert scenario.measure.windows is not None
    windows = scenario.measure.windows.model_copy(update={"kv_len": (kv_len,)})
    measure: Measure = scenario.measure.model_copy(update={"windows": windows})
    changed: Scenario = scenario.model_copy(update={"measure": measure})
    return changed.with_places(scenario.places)
