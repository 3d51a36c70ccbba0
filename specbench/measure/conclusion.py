"""From the folder of an ``ab``, ``sweep`` or ``selftest`` to its analysis: files in, ``analysis.json`` out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specbench import encoding
from specbench.measure.analysis import RunContext
from specbench.measure.looks_file import read_looks
from specbench.measure.plan_file import read_plan_file
from specbench.measure.results_folder import ANALYSIS, ENVIRONMENT, PLAN, ResultsFolder
from specbench.measure.session import read_question
from specbench.records import Analysis
from specbench.scenario.masking import mask_scenario
from specbench.scenario.plan import RunPlan

SWEEP = "sweep"


def conclude_question(path: Path, status: str) -> Analysis | None:
    """Analyse what is on disk and write ``analysis.json``.

    :param status: ``complete`` or ``interrupted``, as measuring ended.
    :return: None where nothing was measured yet: the plan or its first trial is still to come.
    :raises ResultsError: a file of the folder is damaged.
    :raises StorageError: it could not be written.
    """
    if not (path / PLAN).exists():
        return None
    plan = read_plan_file(path / PLAN)
    with ResultsFolder(path) as folder:
        if not folder.contents.trials:
            return None
        analysis = _analyze(folder, plan, status)
        folder.write(ANALYSIS, encoding.dumps(analysis, indent=2) + "\n")
    return analysis


def _analyze(folder: ResultsFolder, plan: RunPlan, status: str) -> Analysis:
    from specbench.measure.ab_analysis import analyze_ab, analyze_sweep

    trials, requests = folder.contents.trials, folder.contents.requests
    context = _context(folder.path, plan)
    if plan.kind == SWEEP:
        return analyze_sweep(plan, trials, requests, context)
    return analyze_ab(plan, trials, requests, read_looks(folder.path), context, status)


def _context(path: Path, plan: RunPlan) -> RunContext:
    _, found = read_question(path)
    environment: dict[str, Any] = encoding.read_object(path / ENVIRONMENT)
    return RunContext(
        scenario=mask_scenario(plan.scenario),
        environment=environment,
        command=found.get("command"),
        plan_hash=plan.sha256,
        planned_trials=len(plan.trials),
    )
