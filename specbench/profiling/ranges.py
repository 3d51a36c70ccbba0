"""Named ranges for outside profilers: NVTX (Nsight Systems) and PyTorch's profiler, with a window of steps.

What a profiler shows:

- one range a step, ``step 12 ctx=0/0 gen=4 K=4``, from the launch until the host has the tokens. Under overlap
  scheduling steps overlap, so these are process ranges (start and end), not a thread's stack;
- one range a stage, on the thread that runs it: ``prepare_inputs``, ``target_forward ctx=0/0 gen=4 K=4``, ... Its
  payload is the step number. The number is kept out of the text so that tools which group by text can group.

The first word of the text is the range's name; the batch shape is known from the launch on. No torch is imported
unless its profiler is asked for.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from specbench.device.tracing import NullTracer, RangeRecorder, Tracer
from specbench.errors import InputError, StorageError
from specbench.profiling.window import Mark, ProfilerHooks, ProfileWindow, WindowTracer

DOMAIN = "specbench"
PROFILES = ("off", "nvtx", "torch")
TRACE_FILE = "trace.json.gz"
DEFAULT_TORCH_WINDOW = ProfileWindow(11, 30)
"""PyTorch's profiler keeps every operator in memory; a whole run would not fit a viewer."""

_ATTACHED = "NVTX_INJECTION64_PATH"
_COLORS = {"host": "blue", "device": "green"}


class NvtxTracer(WindowTracer):
    """NVTX ranges in the domain ``specbench``, through whichever release of the ``nvtx`` package is installed.

    :raises InputError: the package is missing, or switched off by ``NVTX_DISABLE``.
    """

    def __init__(self, recorder: Tracer | None = None, window: ProfileWindow | None = None) -> None:
        super().__init__(recorder, window)
        try:
            import nvtx
        except ImportError as error:
            raise InputError(
                "the nvtx package is not installed", where="--profile nvtx", hint="pip install nvtx"
            ) from error
        if not nvtx.enabled():
            raise InputError(
                "NVTX is switched off by the environment variable NVTX_DISABLE",
                where="--profile nvtx",
                hint="unset NVTX_DISABLE",
            )
        if os.environ.get(_ATTACHED) and not hasattr(nvtx.annotate("attached", domain=DOMAIN), "attributes"):
            warnings.warn(
                "a profiler is attached but takes no NVTX ranges: it was started without NVTX tracing, or it is older "
                "than this nvtx package, and `pip install nvtx==0.2.11` helps",
                RuntimeWarning,
                stacklevel=2,
            )
        self._nvtx = nvtx
        # Annotations hold no state between enter and exit but the payload, so one a lane and text is enough.
        self._annotations: dict[tuple[str, str], Any] = {}

    def _mark(self, text: str, lane: str, step: int | None) -> Mark:
        annotation = self._annotations.get((lane, text))
        if annotation is None:
            annotation = self._nvtx.annotate(text, color=_COLORS.get(lane), domain=DOMAIN)
            self._annotations[lane, text] = annotation
        # Releases after 0.2.11 keep no attributes while no tool is attached.
        attributes = getattr(annotation, "attributes", None)
        if attributes is not None and step is not None:
            attributes.payload = step
        mark: Mark = annotation
        return mark

    def _begin_step(self, text: str, step: int) -> Any:
        return (self._nvtx.start_range(text, color="orange", domain=DOMAIN, payload=step),)

    def _end_step(self, handle: Any) -> None:
        self._nvtx.end_range(*handle)


class TorchTracer(WindowTracer):
    """PyTorch's profiler over a window of steps; the trace is written when the run finishes."""

    def __init__(self, recorder: Tracer | None = None, window: ProfileWindow | None = None) -> None:
        super().__init__(recorder, window or DEFAULT_TORCH_WINDOW)
        import torch

        self._torch = torch
        self._profiler: Any = None

    def _mark(self, text: str, lane: str, step: int | None) -> Mark:  # noqa: ARG002
        mark: Mark = self._torch.profiler.record_function(f"{DOMAIN}: {text}")
        return mark

    def _open_window(self) -> None:
        # The profiler is switched on and off between device items, never in the middle of one.
        if self._hooks is not None:
            self._hooks.synchronize()
        profiler = self._torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(activities=activities, experimental_config=_all_threads())
        self._profiler.start()

    def _close_window(self) -> None:
        if self._hooks is not None and not self._is_over:
            self._hooks.synchronize()
        self._profiler.stop()

    def _save(self, folder: Path | None) -> str | None:
        path = (folder or Path.cwd()) / TRACE_FILE
        try:
            self._profiler.export_chrome_trace(str(path))
        except OSError as error:
            raise StorageError(
                f"the trace could not be written ({error.strerror or error})",
                where=str(path),
                hint="free space, or profile fewer steps with --steps",
            ) from error
        return f"trace of steps {self._window}: {path}"


def _all_threads() -> Any:
    """Profiler settings that include the device's worker thread, or None where this PyTorch cannot."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        warnings.warn(
            "this PyTorch profiles one thread only: on the CPU, ranges of the device's worker are missing",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def build_tracer(profile: str, recorder: RangeRecorder | None = None, window: ProfileWindow | None = None) -> Tracer:
    """Return the tracer for ``--profile profile --steps window``; what it marks also reaches ``recorder``.

    Off and without a window it is the recorder itself, or a tracer that does nothing. A window without marks still
    calls the device's profiler hooks at its edges, for ``nsys --capture-range=cudaProfilerApi``.

    :raises InputError: an unknown profile, or one this machine cannot provide.
    """
    if profile == "nvtx":
        return NvtxTracer(recorder, window)
    if profile == "torch":
        return TorchTracer(recorder, window)
    if profile != "off":
        raise InputError(f"{profile!r} is none of {', '.join(PROFILES)}", where="--profile")
    if window is not None:
        return WindowTracer(recorder, window)
    return recorder or NullTracer()


def attach_device(tracer: Tracer, hooks: ProfilerHooks) -> None:
    """Let the window's edges call the device's profiler hooks; nothing to do for a tracer without a window."""
    if isinstance(tracer, WindowTracer):
        tracer.attach(hooks)


def finish_tracer(tracer: Tracer, folder: Path | None = None) -> str | None:
    """Close ranges and windows, write a trace into ``folder`` if one was taken, and say where: the run is over."""
    return tracer.finish(folder) if isinstance(tracer, WindowTracer) else None
