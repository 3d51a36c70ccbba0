"""What all workloads made of text share: which conversations of a set are used, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from specbench.errors import UnknownNameError, WorkloadError
from specbench.workloads.base import (
    NATURAL,
    SYNTHETIC,
    Conversation,
    Label,
    WorkloadSettings,
    draw_length,
    require_tokenizer,
    stable_seed,
)
from specbench.workloads.chat_template import Message

if TYPE_CHECKING:
    from specbench.workloads.tokenizer import Tokenizer


class TextWorkload(ABC):
    """A set of conversations in text. A kind says where they come from; the settings select from them.

    :raises WorkloadError: no tokenizer, or one with more ids than the model.
    """

    kind: ClassVar[str]

    def __init__(self, settings: WorkloadSettings, *, vocab_size: int, tokenizer: Tokenizer | None) -> None:
        tokenizer = require_tokenizer(tokenizer)
        if tokenizer.vocab_size > vocab_size:
            raise WorkloadError(
                f"the tokenizer has {tokenizer.vocab_size} ids and the model only {vocab_size}",
                where=tokenizer.source,
                hint="the tokenizer that belongs to this model",
            )
        self.settings = settings
        self._is_natural = tokenizer.is_natural

    @property
    def label(self) -> Label:
        """``natural``, unless the tokenizer is the byte-level stand-in."""
        return NATURAL if self._is_natural else SYNTHETIC

    @abstractmethod
    def read(self) -> list[Conversation]:
        """Return the whole set in its own order. ``output_len`` None takes the workload's ``osl``."""

    def conversations(self) -> list[Conversation]:
        """Return the conversations the settings select, in workload order."""
        return select(self.read(), self.settings)


def select(conversations: Sequence[Conversation], settings: WorkloadSettings) -> list[Conversation]:
    """Filter, cut, order and count ``conversations`` as the settings say (the rules are in ``base``'s
    docstring).

    :raises UnknownNameError: a category that the set does not have.
    :raises WorkloadError: more turns asked for than any conversation has.
    """
    chosen = _limit_turns(_in_categories(conversations, settings.categories), settings.turns)
    if settings.shuffle:
        chosen.sort(key=lambda conversation: stable_seed("shuffle", settings.seed, conversation.conversation_id))
    ordered = list(_rotate_categories(chosen))
    if settings.num_requests is not None:
        ordered = _take_requests(ordered, settings.num_requests)
    return [_complete(conversation, settings) for conversation in ordered]


def _in_categories(conversations: Sequence[Conversation], wanted: tuple[str, ...] | None) -> list[Conversation]:
    if wanted is None:
        return list(conversations)
    known = {conversation.category for conversation in conversations}
    for name in wanted:
        if name not in known:
            raise UnknownNameError.of("category", name, known, where="workload.categories")
    return [conversation for conversation in conversations if conversation.category in wanted]


def _limit_turns(conversations: list[Conversation], turns: int | None) -> list[Conversation]:
    """Cut each conversation to its first ``turns`` turns; shorter ones stay as they are."""
    if turns is None:
        return conversations
    longest = max(conversation.num_turns for conversation in conversations)
    if turns > longest:
        raise WorkloadError(
            f"asks for {turns} turns, and no conversation has more than {longest}",
            where="workload.turns",
            hint=f"workload.turns={longest}, or null for all",
        )
    return [_cut(conversation, turns) for conversation in conversations]


def _rotate_categories(conversations: Sequence[Conversation]) -> Iterator[Conversation]:
    """Yield one conversation of each category in turn, in order of first appearance, until all are out."""
    queues: dict[str, list[Conversation]] = {}
    for conversation in conversations:
        queues.setdefault(conversation.category, []).append(conversation)
    for rank in range(max(map(len, queues.values()))):
        for queue in queues.values():
            if rank < len(queue):
                yield queue[rank]


def _take_requests(conversations: Sequence[Conversation], num_requests: int) -> list[Conversation]:
    """Take turns worth ``num_requests``, starting the set again (with new ids) when it is through."""
    taken: list[Conversation] = []
    left = num_requests
    for round_number in count(1):
        for conversation in conversations:
            if left <= 0:
                return taken
            suffix = f"#{round_number}" if round_number > 1 else ""
            named = replace(conversation, conversation_id=conversation.conversation_id + suffix)
            taken.append(_cut(named, left))
            left -= conversation.num_turns
    raise AssertionError("unreachable")


def _cut(conversation: Conversation, turns: int) -> Conversation:
    if conversation.turns is None or len(conversation.turns) <= turns:
        return conversation
    return replace(conversation, turns=conversation.turns[:turns])


def _complete(conversation: Conversation, settings: WorkloadSettings) -> Conversation:
    """Give a conversation the system prompt, output cap and seed of the settings where it has none."""
    history = conversation.history
    has_system = any(message.role == "system" for message in history)
    if settings.system_prompt is not None and not has_system:
        history = (Message("system", settings.system_prompt), *history)
    output_len = conversation.output_len
    if output_len is None:
        output_len = draw_length(settings.osl, "osl", settings.seed, conversation.conversation_id)
    return replace(conversation, history=history, output_len=output_len, seed=settings.seed)


def require_unique_ids(conversations: Sequence[Conversation], where: str) -> None:
    """Refuse a set in which two conversations have one id, since requests are told apart by it."""
    seen: set[str] = set()
    for conversation in conversations:
        if conversation.conversation_id in seen:
            raise WorkloadError(f"the id {conversation.conversation_id!r} is used twice", where=where)
        seen.add(conversation.conversation_id)
