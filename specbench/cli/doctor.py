"""``specbench doctor``: what this machine has, what is missing, and the exact command that mends it."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
import typer

from specbench.cli.tables import print_json, print_table
from specbench.downloads import cache_directory, read_manifest
from specbench.engine.models.checkpoint import model_directory
from specbench.measure.environment import describe_cpu, describe_gpus, load_average, read_governor
from specbench.scenario.machine import available_memory_bytes, cuda_problem
from specbench.scenario.schema import Model
from specbench.scenario.units import format_bytes
from specbench.workloads import mt_bench

Status = Literal["ok", "warn", "missing"]

PACKAGES = {
    "torch": "2.6",
    "transformers": "4.51",
    "tokenizers": "0.20",
    "safetensors": "0.4.3",
    "gguf": "0.10",
    "huggingface_hub": "0.26",
    "numpy": "1.26",
    "pandas": "2.2",
    "scipy": "1.11",
    "nvtx": "0.2.11",
}
"""What measuring needs, and the oldest version of each that works."""

PYTHON = (3, 10)
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
BUSY_SHARE = 0.25
"""Load of others, as a share of the cores, above which figures are doubtful."""
LOW_MEMORY = 2 * 1024**3
LOW_DISK = 1024**3
_THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's answer. ``fix`` is a command, or None where nothing needs one."""

    item: str
    status: Status
    found: str
    fix: str | None = None


def doctor_command(
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Tell what this machine has, what is missing, and the command that mends it."""
    findings = examine()
    if json:
        print_json([asdict(finding) for finding in findings])
        return
    print_table(["item", "status", "found"], [[f.item, f.status, f.found] for f in findings])
    fixes = [finding for finding in findings if finding.fix is not None]
    if fixes:
        print("\nto mend:")
    for finding in fixes:
        print(f"  {finding.item}:\n    {finding.fix}")


def examine() -> list[Finding]:
    """Every finding, in the order of printing. Loads no torch."""
    return [
        _python(),
        *(_package(name, oldest) for name, oldest in PACKAGES.items()),
        *_processor(),
        _governor(),
        _load(),
        *_memory(),
        _huge_pages(),
        _gpu(),
        _profiler(),
        *_cache(),
        _results(),
    ]


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] >= PYTHON:
        return Finding("python", "ok", found)
    return Finding("python", "missing", found, "apt-get install python3.11 python3.11-venv")


def _package(name: str, oldest: str) -> Finding:
    fix = f"{sys.executable} -m pip install '{name}>={oldest}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, "missing", "not installed", fix)
    if _release(found) < _release(oldest):
        return Finding(name, "warn", f"{found}, older than {oldest}", fix)
    return Finding(name, "ok", found)


def _release(text: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` -> (2, 13, 0)."""
    parts = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


def _processor() -> list[Finding]:
    cpu = describe_cpu()
    flags = cpu["flags"]
    cores = f"{cpu['usable_cores']} usable of {cpu['logical_cores']} ({cpu['physical_cores']} physical)"
    findings = [Finding("cpu", "ok", str(cpu["model"] or cpu["architecture"])), Finding("cores", "ok", cores)]
    if flags is None:
        return [*findings, Finding("cpu flags", "warn", "cannot be read here")]
    shown = " ".join(flags) or "none that matter"
    if any(flag in flags for flag in BFLOAT16_FLAGS):
        return [*findings, Finding("cpu flags", "ok", shown)]
    slow = f"{shown}; no bfloat16 products, so float32 is faster here"
    return [*findings, Finding("cpu flags", "warn", slow, "specbench run SCENARIO --set engine.dtype=float32")]


def _governor() -> Finding:
    governor = read_governor()
    if governor is None:
        return Finding("governor", "ok", "not shown to this system (a virtual machine shows none)")
    if governor == "performance":
        return Finding("governor", "ok", governor)
    return Finding("governor", "warn", governor, "sudo cpupower frequency-set -g performance")


def _load() -> Finding:
    load, cores = load_average(), psutil.cpu_count() or 1
    if load is None:
        return Finding("load", "warn", "cannot be read here")
    found = f"{load[0]} over the last minute, {cores} cores"
    if load[0] <= BUSY_SHARE * cores:
        return Finding("load", "ok", found)
    return Finding("load", "warn", found, "top -b -n 1 -o %CPU | head -15   # see what runs, and stop it")


def _memory() -> list[Finding]:
    total, swap = psutil.virtual_memory().total, psutil.swap_memory()
    available = available_memory_bytes("cpu")
    found = f"{format_bytes(available or 0)} available of {format_bytes(total)}"
    enough = available is None or available >= LOW_MEMORY
    memory = Finding("memory", "ok", found)
    if not enough:
        memory = Finding("memory", "warn", found, "ps aux --sort=-%mem | head -5   # see what takes it, and stop it")
    if swap.used > 0:
        used = f"{format_bytes(swap.used)} of {format_bytes(swap.total)} in use"
        return [memory, Finding("swap", "warn", used, "sudo swapoff -a")]
    return [memory, Finding("swap", "ok", f"{format_bytes(swap.total)}, none in use")]


def _huge_pages() -> Finding:
    try:
        text = _THP.read_text()
    except OSError:
        return Finding("huge pages", "ok", "not shown to this system")
    mode = text[text.find("[") + 1 : text.find("]")]
    if mode != "never":
        return Finding("huge pages", "ok", mode)
    return Finding("huge pages", "warn", mode, f"echo madvise | sudo tee {_THP}")


def _gpu() -> Finding:
    gpus, problem = describe_gpus(), cuda_problem()
    if not gpus:
        return Finding("gpu", "ok", "none found; device cpu is used")
    found = "; ".join(f"{gpu['name']}, {gpu['memory.total']}, driver {gpu['driver_version']}" for gpu in gpus)
    if problem is None:
        return Finding("gpu", "ok", found)
    fix = f"{sys.executable} -m pip install --force-reinstall torch" if "PyTorch" in problem else None
    return Finding("gpu", "warn", f"{found}; {problem}", fix)


def _profiler() -> Finding:
    if shutil.which("nsys") is None:
        fix = "sudo apt-get install nsight-systems-cli   # from NVIDIA's package repository"
        return Finding("nsys", "missing", "not on PATH; only `nsys profile` needs it", fix)
    text = _first_line(["nsys", "--version"])
    return Finding("nsys", "ok", text) if text else Finding("nsys", "warn", "on PATH, but does not run")


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else ""


def _cache() -> list[Finding]:
    cache, preset = cache_directory(), str(Model().source)
    directory, questions = model_directory(preset), mt_bench.pulled_file()
    manifest = read_manifest(directory)
    model = Finding("default model", "missing", f"{preset} is not here", f"specbench pull {preset}")
    if manifest is not None:
        model = Finding("default model", "ok", f"{preset}, from {manifest.get('origin', 'an unknown source')}")
    data = Finding("mt-bench", "missing", "not here; only workload.kind mt_bench needs it", "specbench pull mt-bench")
    if questions.is_file():
        data = Finding("mt-bench", "ok", str(questions))
    return [_writable("cache", cache, "export SPECBENCH_CACHE=/a/folder/you/can/write"), model, data]


def _results() -> Finding:
    return _writable("results", Path("results"), "specbench run SCENARIO --out /a/folder/you/can/write")


def _writable(item: str, folder: Path, fix: str) -> Finding:
    """Whether ``folder``, or the nearest folder above it that exists, can be written, and has room."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    problem = _try(lambda: tempfile.TemporaryFile(dir=existing).close())
    if problem is not None:
        return Finding(item, "missing", f"{folder} cannot be written: {problem}", fix)
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {format_bytes(free)} free"
    return Finding(item, "ok", found) if free >= LOW_DISK else Finding(item, "warn", found, fix)


def _try(action: Callable[[], Any]) -> str | None:
    try:
        action()
    except OSError as error:
        return error.strerror or str(error)
    return None
