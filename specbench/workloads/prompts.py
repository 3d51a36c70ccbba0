"""``prompts``: your own prompts, one JSON object a line.

Each line has exactly one of

- ``prompt``: what the user says,
- ``turns``: what the user says, turn by turn; the model's own answers go between,
- ``messages``: a chat to be answered, as ``[{"role": ..., "content": ...}, ...]``: at most one system
  message, at the start; the last one from the user. Answers in it are sent as they stand.

and may have ``id``, ``category`` and ``output_len`` (or ``max_tokens``), which wins over ``workload.osl``. A
system message wins over ``workload.system_prompt``. Other keys are left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specbench.errors import WorkloadError, nearest_hint
from specbench.workloads.base import MAX_TOKENS_PER_REQUEST, Conversation, WorkloadSettings
from specbench.workloads.chat_template import Message
from specbench.workloads.jsonl import Row, describe, read_rows
from specbench.workloads.text import TextWorkload, require_unique_ids

if TYPE_CHECKING:
    from specbench.workloads.tokenizer import Tokenizer

CONTENT_KEYS = ("prompt", "turns", "messages")
ROLES = ("system", "user", "assistant")
DEFAULT_CATEGORY = "prompts"


class PromptFile(TextWorkload):
    """The prompts in the file at ``workload.path``."""

    kind = "prompts"

    def __init__(self, settings: WorkloadSettings, *, vocab_size: int, tokenizer: Tokenizer | None) -> None:
        if settings.path is None:
            raise WorkloadError(
                "needs the path of a JSONL file",
                where="workload.path",
                hint='a file with lines such as {"prompt": "Name three rivers."}',
            )
        super().__init__(settings, vocab_size=vocab_size, tokenizer=tokenizer)
        self._path = Path(settings.path).expanduser()

    def read(self) -> list[Conversation]:
        """See :class:`TextWorkload`."""
        return read_prompts(self._path)


def read_prompts(path: Path) -> list[Conversation]:
    """Read a prompt file.

    :raises WorkloadError: unreadable, or a line without a usable prompt, or an id used twice.
    """
    conversations = [_conversation(row) for row in read_rows(path)]
    require_unique_ids(conversations, str(path))
    return conversations


def _conversation(row: Row) -> Conversation:
    history, turns = _content(row)
    return Conversation(
        conversation_id=row.identifier("id", "question_id") or f"line-{row.line}",
        category=row.text("category") if row.values.get("category") is not None else DEFAULT_CATEGORY,
        turns=turns,
        prompt_token_ids=None,
        output_len=_output_len(row),
        seed=0,
        history=history,
    )


def _content(row: Row) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return (messages before the first turn, user turns)."""
    found = [key for key in CONTENT_KEYS if row.values.get(key) is not None]
    if not found:
        near = (nearest_hint(key, CONTENT_KEYS) for key in row.values)
        hint = next((hint for hint in near if hint), '{"prompt": "..."}')
        raise row.error(f"no 'prompt', 'turns' or 'messages'; {row.describe_keys()}", hint=hint)
    if len(found) > 1:
        raise row.error(f"has {' and '.join(repr(key) for key in found)}; only one can be the prompt")
    if found == ["prompt"]:
        return (), (row.text("prompt"),)
    if found == ["turns"]:
        return (), row.texts("turns")
    messages = _messages(row)
    return tuple(messages[:-1]), (messages[-1].content,)


def _messages(row: Row) -> list[Message]:
    value = row.values["messages"]
    if not isinstance(value, list) or not value:
        raise row.error(f"'messages' must be a list of messages, found {describe(value)}")
    messages = [_message(row, entry, f"messages[{index}]") for index, entry in enumerate(value)]
    for index, message in enumerate(messages):
        if message.role == "system" and index > 0:
            raise row.error(f"messages[{index}] is a system message; only the first may be one")
    if messages[-1].role != "user":
        raise row.error(f"the last message is from the {messages[-1].role}; the user's must be last, to be answered")
    return messages


def _message(row: Row, entry: object, name: str) -> Message:
    if not isinstance(entry, dict):
        raise row.error(f"{name!r} must be an object with role and content, found {describe(entry)}")
    role = entry.get("role")
    if role not in ROLES:
        hint = nearest_hint(role, ROLES) if isinstance(role, str) else None
        raise row.error(f"the role of {name} must be one of {', '.join(ROLES)}, found {describe(role)}", hint=hint)
    return Message(role, row.as_text(entry.get("content"), f"{name}.content"))


def _output_len(row: Row) -> int | None:
    lengths = {length for key in ("output_len", "max_tokens") if (length := row.count(key)) is not None}
    if len(lengths) > 1:
        raise row.error("'output_len' and 'max_tokens' differ; leave one out")
    length = lengths.pop() if lengths else None
    if length is not None and length > MAX_TOKENS_PER_REQUEST:
        raise row.error(f"the output length must lie in 1..{MAX_TOKENS_PER_REQUEST}, found {describe(length)}")
    return length
