"""``specbench selftest``: can this machine's answers be trusted, and how small an effect can it show?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specbench.cli.ab_planning import Settings, typed_flags
from specbench.cli.options import Json, out_option, resume_option, set_option
from specbench.cli.session_folder import (
    NOT_STARTED,
    Options,
    interrupted,
    open_question,
    require_consistent,
)
from specbench.errors import InvalidMeasurementError
from specbench.measure.conclusion import conclude_question
from specbench.measure.results_folder import SELFTEST
from specbench.records import Analysis
from specbench.scenario.plan import Question

if TYPE_CHECKING:
    from specbench.measure.selftest import SelfTest

BUDGET = "5m"
DEFAULT_SCENARIO = Path(__file__).with_name("selftest.yaml")


def selftest_command(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="The scenario file; the default model on chat prompts, if there is none.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"Time to measure in; one segment of each comparison may take longer. [default: {BUDGET}]",
        ),
    ] = None,
    overrides: Annotated[list[str] | None, set_option()] = None,
    out: Annotated[Path | None, out_option("selftest")] = None,
    resume: Annotated[Path | None, resume_option("selftest")] = None,
    json: Json = False,
) -> None:
    """Try the instrument on this machine: 20 comparisons of equal arms, and a known delay in either arm.

    Equal arms may be called different once in 20; at 4 the alarm is raised. The interval of a known delay has to cover
    it, and the sign has to turn when the other arm is delayed. Last comes the floor: the smallest effect that 1, 5 and
    15 minutes show here.

    Exit codes: 0 passed, 2 wrong input, 3 failed, 4 the engine failed, 130 interrupted.
    """
    settings = Settings(budget=budget)
    given = typed_flags(dict(settings.flags()))
    options = Options("selftest", scenario, overrides or [], out, resume, json, given=given)
    require_consistent(options, needs_scenario=False)
    stands = resume is not None and scenario is None and not options.overrides and not given
    opened = open_question(options, None if stands else lambda: _ask(options, settings))
    from specbench.cli.session_execution import measure_question

    status = measure_question(options, opened)
    analysis = conclude_question(opened.path, status)
    if analysis is None or status == "interrupted":
        kept = NOT_STARTED if analysis is None else "it is judged when it is complete"
        raise interrupted(options.command, opened.path, kept)
    _end(options, opened.path, analysis)


def _ask(options: Options, settings: Settings) -> Question:
    from specbench.scenario.questions import ask_selftest

    path = options.scenario or DEFAULT_SCENARIO
    return ask_selftest(path, [f"measure.budget={BUDGET}", *options.overrides, *settings.overrides()])


def _end(options: Options, path: Path, analysis: Analysis) -> None:
    """Judge, write, show.

    :raises InvalidMeasurementError: the selftest failed.
    """
    from specbench import encoding
    from specbench.measure.plan_file import read_plan_file
    from specbench.measure.results_folder import PLAN, ResultsFolder
    from specbench.measure.selftest import PASS, assess

    selftest = assess(read_plan_file(path / PLAN), analysis)
    ResultsFolder(path).write(SELFTEST, encoding.dumps(selftest, indent=2) + "\n")
    _show(options, path, selftest, analysis)
    if selftest.verdict != PASS:
        failed = "; ".join(f"{check.name}: {check.detail}" for check in selftest.checks if not check.passed)
        raise InvalidMeasurementError(
            f"the selftest failed: {failed}",
            where=str(path),
            hint="end what else runs on this machine, then specbench doctor, then the selftest again",
        )


def _show(options: Options, path: Path, selftest: SelfTest, analysis: Analysis) -> None:
    from specbench.cli.selftest_report import build_selftest_report
    from specbench.cli.session_output import show_result, write_report

    report = build_selftest_report(selftest, analysis)
    write_report(path, report, analysis)
    show_result(analysis, report, path, as_json=options.json)
