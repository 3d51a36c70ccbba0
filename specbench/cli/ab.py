"""``specbench ab``: candidates against one baseline, until there is a verdict or the budget is spent."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.ab_planning import AbOptions, Settings, met_conditions, parse_fail_on, require_arms, typed_flags
from specbench.cli.baseline_ref import NOTE, Checkout, check_out, name_arms
from specbench.cli.options import Json, SaveOutputs, SavePrompts, Scenario, out_option, resume_option, set_option
from specbench.cli.run_planning import say
from specbench.cli.session_folder import (
    NOT_STARTED,
    Opened,
    Options,
    finish,
    interrupted,
    open_question,
    require_consistent,
)
from specbench.measure.conclusion import conclude_question
from specbench.records import Analysis
from specbench.scenario.plan import Question

CONDITION_MET = 1
"""Exit code of a ``--fail-on`` condition."""


def ab_command(
    scenario: Scenario = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="V", help="What the candidates are compared with: a variant, off, on, or key=value,..."),
    ] = None,
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="V", help="What is compared with it; on, if there is none. Repeatable."),
    ] = None,
    baseline_ref: Annotated[
        str | None,
        typer.Option(metavar="REV", help="The baseline runs this commit, tag or branch, checked out for it alone."),
    ] = None,
    margin: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="What counts as no difference, as 0.5%. [measure.margin]")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time to measure in, as 5m; the fewest units may take longer. [measure.budget]",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="Fresh processes, one after the other. [measure.processes]")
    ] = None,
    looks: Annotated[
        int | None, typer.Option(metavar="N", help="Looks at which it may end early. [measure.looks]")
    ] = None,
    anytime: Annotated[
        bool, typer.Option("--anytime", help="Look after every block, with wider intervals. [measure.anytime]")
    ] = False,
    design: Annotated[
        str | None, typer.Option(metavar="auto|mirrored|runs", help="How arms are paired. [measure.design]")
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Also every difference of the candidate alone, and all but it.")
    ] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="With --each: every pair of differences as well.")] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(metavar="LIST", help="Exit with 1 on any of slower,not-equivalent,inconclusive."),
    ] = None,
    overrides: Annotated[list[str] | None, set_option("Change a key of all arms, as workload.concurrency=4.")] = None,
    out: Annotated[Path | None, out_option("comparison")] = None,
    resume: Annotated[Path | None, resume_option("comparison")] = None,
    json: Json = False,
    save_outputs: SaveOutputs = False,
    save_prompts: SavePrompts = False,
) -> int:
    """Compare configurations and print which is faster, by how much, with an interval, and why.

    Verdicts: FASTER, SLOWER, EQUIVALENT (within the margin), FASTER or SLOWER BUT NEGLIGIBLE (a difference, within the
    margin), INCONCLUSIVE, INVALID. A scenario with sweep values is compared at every point. Measuring ends with the
    verdict, or with the budget.

    --fail-on, for scripts: slower is the verdict SLOWER; not-equivalent is everything outside the margin or not shown
    to be inside, FASTER included; inconclusive is INCONCLUSIVE. A guard that lets FASTER pass: slower,inconclusive.

    Exit codes: 0 done, 1 a --fail-on condition, 2 wrong input, 3 INVALID, 4 the engine failed, 130 interrupted.
    """
    settings = Settings(margin, budget, processes, looks, anytime, design)
    arms = {"--baseline": baseline, "--candidate": candidate, "--baseline-ref": baseline_ref}
    given = typed_flags({**arms, **settings.flags(), "--each": each, "--pairs": pairs})
    shared = Options("ab", scenario, overrides or [], out, resume, json, save_outputs, save_prompts, given)
    fails = parse_fail_on(fail_on or [])
    options = AbOptions(shared, baseline, candidate or [], baseline_ref, settings, each, pairs, fails)
    require_consistent(shared)
    require_arms(options)
    return compare(options)


def compare(options: AbOptions) -> int:
    """Ask, measure, conclude, show; return the exit code.

    :raises SpecbenchError: as the command ends in any other way.
    """
    with ExitStack() as stack:
        opened = _open(options, stack)
        from specbench.cli.session_execution import measure_question

        status = measure_question(options.shared, opened)
        analysis = conclude_question(opened.path, status)
        if analysis is None:
            raise interrupted(options.shared.command, opened.path, NOT_STARTED)
    return _end(options, opened.path, analysis, status)


def _open(options: AbOptions, stack: ExitStack) -> Opened:
    """Check the commit of ``--baseline-ref`` out for as long as ``stack`` lives, and open the folder."""
    checkout = check_out(options, stack)
    notes = {} if checkout is None else {NOTE: checkout.note}
    if options.shared.scenario is None:
        return open_question(options.shared, None)
    return open_question(options.shared, lambda: _ask(options, checkout), notes)


def _ask(options: AbOptions, checkout: Checkout | None) -> Question:
    from specbench.scenario.questions import ask_ab

    assert options.shared.scenario is not None
    arms = name_arms(options, checkout)
    return ask_ab(
        options.shared.scenario,
        [*options.shared.overrides, *options.settings.overrides(), *arms.overrides],
        arms.baseline,
        arms.candidates,
        each=options.each,
        pairs=options.pairs,
    )


def _end(options: AbOptions, path: Path, analysis: Analysis, status: str) -> int:
    from specbench.cli.session_output import show_result, write_reports

    report = write_reports(path, analysis)
    show_result(analysis, report, path, as_json=options.shared.json)
    finish(options.shared, path, analysis, status)
    met = met_conditions(options.fail_on, analysis.comparisons)
    for line in met:
        say(f"--fail-on {line}")
    return CONDITION_MET if met else 0
