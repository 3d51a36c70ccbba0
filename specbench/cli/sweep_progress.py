"""Progress of ``sweep`` on stderr: a table that fills on a terminal, a line a trial elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from specbench.cli.progress import format_clock
from specbench.measure.observers import SessionObserver, SessionProgress
from specbench.records import FAILED, INTERRUPTED, TrialRecord
from specbench.report.words import short_keys
from specbench.scenario.plan import PlanPoint

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

Now = Callable[[], float]


def make_sweep_observer(
    points: Sequence[PlanPoint], num_trials: int, num_measured: int, stream: TextIO | None = None
) -> SessionObserver:
    """The display that fits ``stream`` (stderr).

    :param num_trials: of the whole sweep; ``num_measured`` of them are on disk already and not measured again.
    """
    stream = stream or sys.stderr
    display = SweepTable if stream.isatty() else SweepLines
    return display(points, num_trials, num_measured, stream)


def name_point(point: PlanPoint) -> str:
    """``concurrency=4 draft_len=2``: the sweep's own coordinates, sections left out."""
    return " ".join(f"{name}={value}" for name, value in short_names(point.coordinates).items()) or point.variant


def short_names(coordinates: Mapping[str, Any]) -> dict[str, Any]:
    """Keys without their section where that leaves them distinct."""
    return dict(zip(short_keys(coordinates).values(), coordinates.values(), strict=True))


class _Sweep:
    """What was measured so far, by point."""

    def __init__(
        self,
        points: Sequence[PlanPoint],
        num_trials: int,
        num_measured: int,
        stream: TextIO,
        now: Now = time.monotonic,
    ) -> None:
        self._points = points
        self._num_trials = num_trials
        self._num_measured = num_measured
        self._stream = stream
        self._now = now
        self._start_s = now()
        self._num_here = 0
        self._by_point: dict[int, list[TrialRecord]] = {}

    def _note(self, point: PlanPoint, trial: TrialRecord) -> None:
        self._num_here += trial.status != INTERRUPTED  # which is measured again
        self._by_point.setdefault(point.index, []).append(trial)

    @property
    def _status(self) -> str:
        """``3/8 trials  0:42  ETA 1:10``; the pace is that of the trials measured by this process."""
        done = self._num_measured + self._num_here
        elapsed = self._now() - self._start_s
        text = f"{done}/{self._num_trials} trials  {format_clock(elapsed)}"
        left = self._num_trials - done
        return f"{text}  ETA {format_clock(elapsed / self._num_here * left)}" if self._num_here and left > 0 else text

    def show(self, progress: SessionProgress) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`; a sweep shows its trials."""


class SweepLines(_Sweep):
    """A line a trial."""

    def announce(self, line: str) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def trial_done(self, point: PlanPoint, trial: TrialRecord) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        self._note(point, trial)
        self.announce(f"{self._status}  {name_point(point)}: {_describe_trial(trial)}")

    def finish(self) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""


def _describe_trial(trial: TrialRecord) -> str:
    if trial.status == FAILED:
        return f"FAILED: {' '.join((trial.error or 'no reason is known').split())}"
    speed = "no throughput" if trial.output_tokens_per_s is None else f"{trial.output_tokens_per_s:,.1f} tok/s"
    accepted = "" if trial.acceptance_length is None else f", {trial.acceptance_length:.2f} tok/step"
    return f"{speed}{accepted}" + ("" if trial.status == "complete" else f" ({trial.status})")


class SweepTable(_Sweep):
    """A row a point, redrawn after each trial; no thread redraws while something is measured."""

    _live: Live | None = None

    def announce(self, line: str) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        if self._live is None:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        else:
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def trial_done(self, point: PlanPoint, trial: TrialRecord) -> None:
        """See :class:`~specbench.measure.observers.SessionObserver`."""
        self._note(point, trial)
        if self._live is None:
            self._live = self._open_live()
        self._live.update(self._table(), refresh=True)

    def finish(self) -> None:
        """Leave the table on the screen."""
        if self._live is not None:
            self._live.stop()
        self._live = None

    def _open_live(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream, highlight=False)
        live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        live.start()
        return live

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=self._status, caption_justify="left")
        names = list(dict.fromkeys(name for point in self._points for name in short_names(point.coordinates)))
        for name in names or ["variant"]:
            table.add_column(Text(name))
        for name in ("trials", "tok/s", "tok/step"):
            table.add_column(name, justify="right")
        table.add_column("", overflow="fold")
        for point in self._points:
            coordinates = short_names(point.coordinates)
            own = [str(coordinates.get(name, "")) for name in names] or [point.variant]
            table.add_row(*(Text(cell) for cell in (*own, *self._figures(point.index))))
        return table

    def _figures(self, point: int) -> list[str]:
        trials = self._by_point.get(point, [])
        failed = next((trial for trial in trials if trial.status == FAILED), None)
        wall_s = sum(trial.wall_ns for trial in trials) / 1e9
        tokens = sum(trial.committed_tokens for trial in trials)
        lengths = [trial.acceptance_length for trial in trials if trial.acceptance_length is not None]
        return [
            str(sum(trial.status != INTERRUPTED for trial in trials)) if trials else "",
            f"{tokens / wall_s:,.1f}" if wall_s and not failed else "",
            f"{sum(lengths) / len(lengths):.2f}" if lengths else "",
            "" if failed is None else _describe_trial(failed),
        ]
