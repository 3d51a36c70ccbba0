"""From the folder of an ``ab``, ``sweep`` or ``selftest`` to its analysis: files in, ``analysis.json`` out."""

from __future__ import annotations

from pathlib import Path

from specbench import encoding
from specbench.measure.looks_file import read_looks
from specbench.measure.plan_file import read_plan_file
from specbench.measure.results_folder import ANALYSIS, PLAN, ResultsFolder
from specbench.measure.session import read_context, read_question
from specbench.records import Analysis
from specbench.scenario.plan import RunPlan
from specbench.scenario.questions import SWEEP


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
    from specbench.measure.ab_analysis import analyze_ab
    from specbench.measure.sweep_analysis import analyze_sweep

    trials, requests = folder.contents.trials, folder.contents.requests
    _, begun = read_question(folder.path)
    context = read_context(folder.path, plan, begun)
    if plan.kind == SWEEP:
        return analyze_sweep(plan, trials, requests, context)
    return analyze_ab(plan, trials, requests, read_looks(folder.path), context, status)
