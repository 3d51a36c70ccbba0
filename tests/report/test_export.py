"""``specbench export``: old results in other formats, without torch, over nothing that was measured."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from comparison_sample import AB_SWEEP, SWEEP
from sample import ANALYSIS

from specbench.cli.app import main
from specbench.cli.export import render
from specbench.errors import ResultsError
from specbench.registry import FORMATS
from specbench.report.formats import json as json_format

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "results" / "quickstart"


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    folders = []
    for name, analysis in (("first", ANALYSIS), ("second", AB_SWEEP), ("third", SWEEP)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "analysis.json").write_text(json_format.render(analysis))
        folders.append(folder)
    return folders


def export(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["export", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_results_from_before_comparisons_still_render(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, errors = export(capsys, QUICKSTART, "--format", name)
    assert (code, errors) == (0, "")
    assert "quickstart" in text or name == "csv"
    assert "smollm2-135m" in text


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_folder_and_its_analysis_are_the_same(
    name: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    of_folder = export(capsys, runs[1], "--format", name)
    assert of_folder == export(capsys, runs[1] / "analysis.json", "--format", name)
    assert of_folder[1] == FORMATS.load(name)(AB_SWEEP)


def test_several_results_together(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(export(capsys, *runs, "--format", "csv")[1])))
    assert [row["run"] for row in rows] == ["first"] + ["second"] * 4 + ["third"] * 9
    assert next(iter(rows[0])) == "run"
    found = json.loads(export(capsys, *runs, "--format", "json")[1])
    assert [item["kind"] for item in found] == ["run", "ab", "sweep"]
    text = export(capsys, *runs, "--format", "markdown")[1]
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## first", "## second", "## third"]
    assert export(capsys, *runs, "--format", "html")[1].count("<article>") == 3


def test_the_format_follows_the_name_of_the_file(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    target = runs[0].parent / "all.html"
    code, text, errors = export(capsys, *runs, "-o", target)
    assert (code, text, errors) == (0, "", f"wrote {target}\n")
    assert target.read_text().startswith("<!doctype html>")
    assert export(capsys, runs[0], "-o", target, "--format", "markdown")[0] == 0  # replaced, and --format wins
    assert target.read_text().startswith("### specbench")
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask
    assert sorted(path.name for path in target.parent.iterdir()) == ["all.html", "first", "second", "third"]


@pytest.mark.parametrize("name", ["analysis.json", "new.json", "trials.csv"])
def test_what_was_measured_is_never_written_over(
    name: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = (runs[0] / "analysis.json").read_bytes()
    code, text, errors = export(capsys, runs[1], "-o", runs[0] / name, "--format", "json")
    assert (code, text) == (2, "")
    assert "report" in errors
    assert (runs[0] / "analysis.json").read_bytes() == before
    assert [path.name for path in runs[0].iterdir()] == ["analysis.json"]


def test_a_link_into_a_results_folder_is_followed(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    link = runs[0].parent / "innocent.json"
    link.symlink_to(runs[0] / "analysis.json")
    assert export(capsys, runs[1], "-o", link)[0] == 2


def test_a_report_in_the_results_folder_may_be_made_again(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert export(capsys, runs[1], "-o", runs[1] / "report.html")[0] == 0
    assert (runs[1] / "report.html").read_text().startswith("<!doctype html>")


def test_a_pipe_is_written_to_and_stays_a_pipe(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    pipe = runs[0].parent / "pipe.md"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert export(capsys, runs[0], "-o", pipe)[0] == 0
        assert os.read(reader, 1 << 16).decode() == FORMATS.load("markdown")(ANALYSIS)
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert len(list(pipe.parent.iterdir())) == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_device_is_written_to_and_stays_a_device(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    link = runs[0].parent / "full.md"  # through a link: should it be replaced after all, only the link is lost
    link.symlink_to("/dev/full")
    code, _, errors = export(capsys, runs[0], "-o", link)
    assert code == 4
    assert errors == f"error: -o {link}: could not be written: No space left on device\n"
    assert Path("/dev/full").is_char_device()
    assert link.is_symlink()


def test_a_dash_is_stdout(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    expected = FORMATS.load("csv")(ANALYSIS)
    assert export(capsys, runs[0], "-o", "-", "--format", "csv") == (0, expected, "")


@pytest.mark.parametrize("redirect", ["| cat", "> out.csv; cat out.csv", ">> out.csv; cat out.csv"])
@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout")
def test_stdout_by_its_name_is_stdout(redirect: str, runs: list[Path]) -> None:
    command = f"{sys.executable} -m specbench export {runs[0]} -o /dev/stdout --format csv {redirect}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=runs[0].parent, env=environment)
    assert (done.stdout, done.stderr) == (FORMATS.load("csv")(ANALYSIS), "")
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no results were named"),
        (["RUN"], "which format is not said"),
        (["RUN", "-o", "x.txt"], "which format is not said"),
        (["RUN", "--format", "vllm"], "unknown format 'vllm'; known: csv, html, json, markdown"),
        (["RUN", "--format", "htlm"], "did you mean 'html'?"),
        (["nowhere", "--format", "csv"], "nowhere/analysis.json: there is no such file"),
        (["RUN", "--format", "csv", "-o", "nowhere/x.csv"], "its folder is not there"),
        (["RUN", "--format", "csv", "-o", "."], "is a folder"),
    ],
)
def test_wrong_input_is_one_message(
    arguments: list[str],
    message: str,
    runs: list[Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(runs[0].parent)
    code, text, errors = export(capsys, *(runs[0] if word == "RUN" else word for word in arguments))
    assert (code, text) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema_version": 99}', '{"kind": "run"}', '{"points": 3}'])
def test_damaged_results_are_one_message(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "analysis.json").write_text(content)
    code, text, errors = export(capsys, tmp_path, "--format", "html")
    assert (code, text) == (2, "")
    assert errors.startswith(f"error: {tmp_path}/analysis.json")


def test_a_full_disk_leaves_the_old_file(
    runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = runs[0].parent / "old.md"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    code, _, errors = export(capsys, runs[0], "-o", target)
    assert (code, target.read_text()) == (4, "old")
    assert "No space left on device" in errors
    assert len(list(target.parent.glob(".old.md*"))) == 0


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_damage(number: str, runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = runs[0] / "analysis.json"
    file.write_text(file.read_text().replace("143.278", number))
    for name in FORMATS:
        code, text, errors = export(capsys, runs[0], "--format", name)
        assert (code, text) == (2, "")
        assert errors == f"error: {file}: cannot be read: {number} is no JSON, so the file is damaged\n"


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_it_loads_no_torch_and_no_pandas(name: str) -> None:
    code = """
import sys
from specbench.cli.app import main
status = main(["export", "results/quickstart", "--format", sys.argv[1]])
print(status, sorted({"torch", "transformers", "pandas", "scipy"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr == "0 []\n"


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_a_selftest_is_exported_as_its_own_report(name: str) -> None:
    """Its comparisons are judged one by one there, and not as a family."""
    folder = ROOT / "results" / "selftest"
    text = render(name, [folder])
    assert "known delay in arm A" in text
    assert "specbench ab" not in text.partition("\n")[0]
    assert render("json", [folder]) == render("json", [folder / "analysis.json"])
    with pytest.raises(ResultsError, match="report of its own"):
        render(name, [folder, folder.parent / "quickstart_ab"])
