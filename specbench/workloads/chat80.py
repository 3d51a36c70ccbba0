"""``chat80``: 80 two-turn prompts, shipped with specbench, so that everything works with no download.

Ten prompts in each of eight categories (writing, roleplay, reasoning, math, coding, extraction, stem,
humanities), the mix that chat models are commonly tried on. They were written for specbench; the second turn
builds on the answer to the first. The data file has the fields of MT-Bench's, so the file can be used
wherever that one is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specbench.workloads.base import Conversation, WorkloadSettings, refuse_settings
from specbench.workloads.mt_bench import read_questions
from specbench.workloads.text import TextWorkload

if TYPE_CHECKING:
    from specbench.workloads.tokenizer import Tokenizer

DATA_FILE = Path(__file__).parent / "data" / "chat80.jsonl"


class Chat80(TextWorkload):
    """The shipped prompts."""

    kind = "chat80"

    def __init__(self, settings: WorkloadSettings, *, vocab_size: int, tokenizer: Tokenizer | None) -> None:
        refuse_settings(settings, "path")
        super().__init__(settings, vocab_size=vocab_size, tokenizer=tokenizer)

    def read(self) -> list[Conversation]:
        """See :class:`TextWorkload`."""
        return read_questions(DATA_FILE)
