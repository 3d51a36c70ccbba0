"""``specbench doctor``: what it finds under made-up circumstances, and that every complaint has a command."""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import doctor
from specbench.cli.doctor import Finding
from specbench.downloads import write_manifest
from specbench.engine.models.checkpoint import model_directory

Cli = Callable[..., Any]
ROOT = Path(__file__).parents[2]
GIB = 1024**3


def test_every_item_has_a_status_and_every_lack_a_command(cli: Cli) -> None:
    outcome = cli("doctor", "--json")
    findings = [Finding(**row) for row in json.loads(outcome.stdout)]
    assert outcome.code == 0
    items = [finding.item for finding in findings]
    assert len(items) == len(set(items))
    expected = {"python", "torch", "cpu", "cores", "cpu flags", "governor", "load", "memory", "swap", "huge pages"}
    assert expected | {"gpu", "nsys", "cache", "default model", "mt-bench", "results"} <= set(items)
    assert {finding.status for finding in findings} <= {"ok", "warn", "missing"}
    assert all(finding.fix for finding in findings if finding.status == "missing")
    assert not any(finding.fix for finding in findings if finding.status == "ok")


def test_the_table_ends_with_the_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("a", "ok", "fine"), Finding("b", "missing", "not here", "get b")]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert cli("doctor").stdout == (
        "item  status   found\na     ok       fine\nb     missing  not here\n\nto mend:\n  b:\n    get b\n"
    )


def test_versions_asked_for_are_those_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = dict(
        re.findall(r'^ +"([\w-]+)>=([\d.]+)",$', text.split("[project.optional-dependencies]")[0], re.MULTILINE)
    )
    assert {name: declared.get(name) for name in doctor.PACKAGES} == doctor.PACKAGES


@pytest.mark.parametrize(
    ("found", "status"),
    [("2.13.0+cpu", "ok"), ("2.6", "ok"), ("2.6.0rc1", "ok"), ("2.5.9", "warn"), ("1.13.1", "warn")],
)
def test_old_versions_are_found(monkeypatch: pytest.MonkeyPatch, found: str, status: str) -> None:
    monkeypatch.setattr(doctor, "version", lambda _: found)
    finding = doctor._package("torch", "2.6")
    assert finding.status == status
    assert (finding.fix is None) == (status == "ok")


def test_a_missing_package_has_the_command_that_installs_it() -> None:
    finding = doctor._package("no_such_package_of_anyone", "1.0")
    assert finding.status == "missing"
    assert finding.fix is not None
    assert finding.fix.endswith("-m pip install 'no_such_package_of_anyone>=1.0'")


@pytest.mark.parametrize(
    ("flags", "status"), [(["avx2", "amx_bf16"], "ok"), (["avx2", "avx512f"], "warn"), ([], "warn"), (None, "warn")]
)
def test_a_cpu_without_bfloat16_is_told(monkeypatch: pytest.MonkeyPatch, flags: list[str] | None, status: str) -> None:
    cpu = {
        "model": "x",
        "architecture": "y",
        "usable_cores": 1,
        "logical_cores": 2,
        "physical_cores": 1,
        "flags": flags,
    }
    monkeypatch.setattr(doctor, "describe_cpu", lambda: cpu)
    assert doctor._processor()[-1].status == status


@pytest.mark.parametrize(("governor", "status"), [("performance", "ok"), (None, "ok"), ("powersave", "warn")])
def test_the_governor(monkeypatch: pytest.MonkeyPatch, governor: str | None, status: str) -> None:
    monkeypatch.setattr(doctor, "read_governor", lambda: governor)
    assert doctor._governor().status == status


@pytest.mark.parametrize(("load", "status"), [([0.4, 9, 9], "ok"), ([1.1, 0, 0], "warn"), (None, "warn")])
def test_the_load_of_others(monkeypatch: pytest.MonkeyPatch, load: list[float] | None, status: str) -> None:
    monkeypatch.setattr(doctor, "load_average", lambda: load)
    monkeypatch.setattr(doctor.psutil, "cpu_count", lambda: 4)
    assert doctor._load().status == status


@pytest.mark.parametrize(
    ("available", "swapped", "statuses"),
    [(8 * GIB, 0, ["ok", "ok"]), (GIB, 0, ["warn", "ok"]), (8 * GIB, 5 * 10**6, ["ok", "warn"])],
)
def test_memory_and_swap(monkeypatch: pytest.MonkeyPatch, available: int, swapped: int, statuses: list[str]) -> None:
    swap = namedtuple("swap", "total used")
    monkeypatch.setattr(doctor, "available_memory_bytes", lambda _: available)
    monkeypatch.setattr(doctor.psutil, "swap_memory", lambda: swap(10 * GIB, swapped))
    assert [finding.status for finding in doctor._memory()] == statuses


@pytest.mark.parametrize(("text", "status"), [("always [madvise] never\n", "ok"), ("always madvise [never]\n", "warn")])
def test_huge_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, status: str) -> None:
    (tmp_path / "enabled").write_text(text)
    monkeypatch.setattr(doctor, "_THP", tmp_path / "enabled")
    assert doctor._huge_pages().status == status


def test_a_gpu_that_this_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"name": "H200", "memory.total": "143771 MiB", "driver_version": "570"}
    monkeypatch.setattr(doctor, "describe_gpus", lambda: [gpu])
    monkeypatch.setattr(doctor, "cuda_problem", lambda: "the installed PyTorch (2.13.0+cpu) is built without CUDA")
    finding = doctor._gpu()
    assert finding.status == "warn"
    assert finding.fix is not None
    assert "pip install --force-reinstall torch" in finding.fix
    monkeypatch.setattr(doctor, "cuda_problem", lambda: None)
    assert doctor._gpu() == Finding("gpu", "ok", "H200, 143771 MiB, driver 570")


def test_the_profiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._profiler().status == "missing"
    nsys = tmp_path / "nsys"
    nsys.write_text("#!/bin/sh\necho 'NVIDIA Nsight Systems version 9'\n")
    nsys.chmod(0o755)
    assert doctor._profiler() == Finding("nsys", "ok", "NVIDIA Nsight Systems version 9")
    nsys.write_text("#!/bin/sh\nexit 3\n")
    assert doctor._profiler().status == "warn"


def test_the_cache_and_what_is_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    cache, model, questions = doctor._cache()
    assert [cache.status, model.status, questions.status] == ["ok", "missing", "missing"]
    assert (model.fix, questions.fix) == ("specbench pull smollm2-135m", "specbench pull mt-bench")
    assert not (tmp_path / "cache").exists()
    directory = model_directory("smollm2-135m")
    directory.mkdir(parents=True)
    write_manifest(directory, {"origin": "somewhere"})
    assert doctor._cache()[1] == Finding("default model", "ok", "smollm2-135m, from somewhere")


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    assert doctor._writable("results", tmp_path, "elsewhere") == Finding(
        "results", "missing", f"{tmp_path} cannot be written: Permission denied", "elsewhere"
    )


def test_a_disk_that_is_almost_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(GIB, GIB, 1000))
    assert doctor._writable("results", tmp_path, "elsewhere").status == "warn"
