"""Question and RunPlan from their JSON, with the hash they had when they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench import encoding
from specbench.errors import ResultsError
from specbench.scenario.plan import Question, RunPlan


def question_from_json(data: Mapping[str, Any], where: str = "question.json") -> Question:
    """The question that :func:`specbench.encoding.to_json` made ``data`` of; other keys are ignored.

    :raises ResultsError: a newer schema, a missing key, or a value of the wrong shape.
    """
    return encoding.from_json(Question, data, where)


def plan_from_json(data: Mapping[str, Any], where: str = "plan.json") -> RunPlan:
    """The plan that :func:`specbench.encoding.to_json` made ``data`` of; other keys are ignored.

    :param data: with ``plan_hash``, the plan must be the one that was hashed.
    :raises ResultsError: a newer schema, a missing key, a value of the wrong shape, or another plan than was hashed.
    """
    plan = encoding.from_json(RunPlan, data, where)
    if data.get("plan_hash") not in (None, plan.sha256):
        raise ResultsError(
            "the plan was changed after it was fixed, so what was measured belongs to another one",
            where=where,
            hint="restore the file, or start a new comparison",
        )
    return plan
