"""Imports point one way, and what must start fast loads no torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHOUT_TORCH = (
    *("stats", "report", "records", "encoding", "scenario", "workloads"),
    *("registry", "downloads", "errors", "cli"),
)
HEAVY = ("torch", "transformers", "tokenizers", "scipy", "pandas", "huggingface_hub", "nvtx")


def run_python(code: str, *arguments: str) -> str:
    """Run code in a fresh interpreter at the repository root and return what it printed last."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_layers_and_forbidden_imports() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[done.stdout.find("Contracts") :] + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_packages_import_without_torch(package: str) -> None:
    code = """
        import importlib, pkgutil, sys
        package = importlib.import_module("specbench." + sys.argv[1])
        for module in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
            importlib.import_module(module.name)
        print(sorted({"torch", "transformers"} & set(sys.modules)))
    """
    assert run_python(code, package) == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "--help"],
        ["ab", "--help"],
        ["sweep", "--help"],
        ["selftest", "--help"],
        ["pull", "--help"],
        ["list", "drafters"],
        ["list", "optimizations", "--json"],
        ["check", "scenarios/quickstart.yaml"],
        ["check", "scenarios/random_tokens.yaml", "--json"],
        ["check", "--schema"],
    ],
    ids=" ".join,
)
def test_commands_that_start_without_torch(arguments: list[str]) -> None:
    code = """
        import json, sys
        from specbench.cli.app import main
        sys.argv = ["specbench", *sys.argv[1:]]
        try:
            status = main()
        except SystemExit as stop:
            status = stop.code
        print("\\n" + json.dumps({"status": status, "torch": "torch" in sys.modules}))
    """
    answer = json.loads(run_python(code, *arguments))
    assert answer["status"] in (0, None)
    assert answer["torch"] is False


def test_the_package_itself_loads_nothing_heavy() -> None:
    code = """
        import sys
        import specbench, specbench.registry
        print(sorted(set(sys.argv[1:]) & set(sys.modules)))
    """
    assert run_python(code, *HEAVY) == "[]"


def test_no_module_has_a_name_that_says_nothing() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    names = {path.relative_to(ROOT) for path in (ROOT / "specbench").rglob("*") if path.stem in vague}
    assert not names


def test_every_file_parses_as_the_oldest_python_we_support() -> None:
    for path in (ROOT / "specbench").rglob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 10))
