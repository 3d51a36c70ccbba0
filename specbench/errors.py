"""Every error specbench raises on purpose, with the exit code a shell sees.

The tree (exit code in brackets; a subclass keeps its parent's code)::

    SpecbenchError
    |-- InputError [2]                what the user gave is wrong
    |   |-- ScenarioError             a scenario file or an override
    |   |-- UnknownNameError          a name no registry has
    |   |-- ModelNotFoundError        no such model, or its files are not here
    |   |-- CheckpointError           files are there, but are not this model
    |   |-- WorkloadError             a data set or prompt file
    |   |-- PromptTooLongError        a prompt does not fit max_seq_len
    |   |-- CapacityError             the configuration cannot fit in memory
    |   |-- DownloadError             something could not be fetched (specbench.downloads)
    |   |-- DeviceUnavailableError    a device this machine does not have
    |   `-- ResultsError              a results folder that cannot be used
    |-- InvalidMeasurementError [3]   measured, but the figures may not be used
    |-- EngineError [4]               the engine failed while running
    |   |-- NonFiniteLogitsError      NaN or infinity in the target's logits
    |   |-- BlockAccountingError      the KV block books do not balance (a bug)
    |   |-- OverrideLiveError         a warm-up's sampling override would reach requests (a bug)
    |   `-- StorageError              results could not be written (disk full, ...)
    `-- InterruptedRunError [130]     stopped by the user; can be resumed

Only ``specbench.cli.app`` turns an error into an exit code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpecbenchError(Exception):
    """Base of the tree. ``str(error)`` is the whole message for people.

    :param what: one sentence: what is wrong, with the value that was found.
    :param where: file, key or object it was found in (``scenario.yaml:4: workload.isl``).
    :param hint: what to try next.
    """

    exit_code = 4

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(self._render())

    def _render(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  try: {self.hint}" if self.hint else head


class InputError(SpecbenchError):
    """What the user gave is wrong."""

    exit_code = 2


class ScenarioError(InputError):
    """A scenario file or an override is wrong."""


class UnknownNameError(InputError):
    """A name that no registry entry has."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str], *, where: str | None = None) -> UnknownNameError:
        """Build the error, with the nearest known name as the hint."""
        names = sorted(known)
        return cls(
            f"unknown {kind} {name!r}; known: {', '.join(names) or 'none'}",
            where=where,
            hint=nearest_hint(name, names),
        )


class ModelNotFoundError(InputError):
    """No such model, or its files are not on this machine."""


class CheckpointError(InputError):
    """Checkpoint files exist but are truncated, unlike the architecture, or unreadable."""


class WorkloadError(InputError):
    """A data set or a prompt file cannot be used."""


class PromptTooLongError(InputError):
    """A prompt does not fit in ``engine.max_seq_len``."""


class CapacityError(InputError):
    """The configuration does not fit in this machine's memory or the engine's limits."""


class DeviceUnavailableError(InputError):
    """A device was asked for that this machine does not have."""


class ResultsError(InputError):
    """A results folder cannot be created, read or resumed."""


class InvalidMeasurementError(SpecbenchError):
    """Figures exist, but a gate says that they may not be used."""

    exit_code = 3


class EngineError(SpecbenchError):
    """The engine failed while it ran."""

    exit_code = 4


class NonFiniteLogitsError(EngineError):
    """The target produced NaN or infinite logits."""


class BlockAccountingError(EngineError):
    """The books of the KV block manager do not balance."""


class OverrideLiveError(EngineError):
    """A sampling override of the warm-up is in force while requests are served."""


class StorageError(EngineError):
    """Results could not be written; what was on disk before is intact."""


class InterruptedRunError(SpecbenchError):
    """The user stopped the run. What was measured is on disk."""

    exit_code = 130


def nearest_hint(name: str, known: Iterable[str]) -> str | None:
    """Return ``"did you mean 'x'?"`` for the known name closest to ``name``, or None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else None
