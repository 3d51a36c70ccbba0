"""What a workload is: conversations whose turns become requests. No torch, no numpy, no tokenizer at import.

A *request* is one turn of a conversation. Turn 0's prompt comes from the data set; turn ``t``'s prompt is
the chat template over all earlier turns and the answers the model itself gave to them, so that the caller
(which has the answers) asks for one prompt at a time, through :class:`ConversationPrompter`.

Rules every kind keeps, so that equal settings give equal inputs on any machine and in any arm:

- ``num_requests`` counts requests, that is turns. Conversations are taken one category after the other in
  rotation, so a short run is as mixed as a long one, and a shorter run is a prefix of a longer one. The last
  conversation is cut to the turns that are left. More requests than the set has start it again, with new ids
  (``c80-001#2``) and so new seeds.
- Randomness is a hash of what it belongs to (:func:`stable_seed`), never of position, count or Python's
  ``hash``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from specbench.errors import WorkloadError
from specbench.registry import WORKLOADS
from specbench.workloads.chat_template import Message
from specbench.workloads.jsonl import is_encodable

if TYPE_CHECKING:
    from specbench.workloads.tokenizer import Tokenizer

Label: TypeAlias = Literal["natural", "synthetic input"]
NATURAL: Label = "natural"
SYNTHETIC: Label = "synthetic input"

LengthRange: TypeAlias = "int | tuple[int, int]"
"""A fixed length in tokens, or (lowest, highest), both included."""

# More than this is a slip of the keyboard: it would fill the memory before the engine could say what fits.
MAX_REQUESTS = 1_000_000
MAX_TOKENS_PER_REQUEST = 16_777_216


@dataclass(frozen=True)
class WorkloadSettings:
    """The ``workload`` section of a scenario, as far as it says what the requests are.

    :param num_requests: requests (turns) in all; None is the whole set, or 16 for kinds that have no end.
    :param isl: prompt length in tokens, for kinds that make up their prompts.
    :param osl: output cap in tokens of every request; in a range, drawn once per conversation.
    :param turns: the first so many turns of each conversation; None is all of them.
    :param seed: key of every draw this workload makes, the requests' own seeds included.
    :param system_prompt: put before each conversation that brings no system message itself.
    :raises WorkloadError: a value outside its range.
    """

    kind: str
    path: str | None = None
    num_requests: int | None = None
    isl: LengthRange = 128
    osl: LengthRange = 128
    categories: tuple[str, ...] | None = None
    turns: int | None = None
    seed: int = 0
    shuffle: bool = False
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        if self.num_requests is not None:
            _require_within("num_requests", self.num_requests, MAX_REQUESTS)
        if self.turns is not None:
            _require_within("turns", self.turns, MAX_REQUESTS)
        for name in ("isl", "osl"):
            low, high = length_bounds(getattr(self, name))
            _require_within(name, low, MAX_TOKENS_PER_REQUEST)
            _require_within(name, high, MAX_TOKENS_PER_REQUEST)
            if low > high:
                raise WorkloadError(
                    f"the range [{low}, {high}] is empty", where=f"workload.{name}", hint=f"[{high}, {low}]"
                )
        if self.system_prompt is not None and not is_encodable(self.system_prompt):
            raise WorkloadError("half a surrogate pair is no text", where="workload.system_prompt")
        if self.categories is not None and not self.categories:
            raise WorkloadError("the list is empty", where="workload.categories", hint="null for all categories")


@dataclass(frozen=True)
class Conversation:
    """One conversation of a workload; each of its turns is one request.

    :param conversation_id: unique within the workload.
    :param turns: what the user says, turn by turn; None where the prompt is given as ids.
    :param prompt_token_ids: the only turn's prompt as ids, used as it is; None where there is text.
    :param output_len: output cap in tokens of each turn; None leaves it to the caller.
    :param seed: the workload's seed.
    :param history: messages before the first turn (a system prompt, examples), always sent.
    """

    conversation_id: str
    category: str
    turns: tuple[str, ...] | None
    prompt_token_ids: tuple[int, ...] | None
    output_len: int | None
    seed: int
    history: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        if (self.turns is None) == (self.prompt_token_ids is None):
            raise ValueError("a conversation has either turns or prompt_token_ids")

    @property
    def num_turns(self) -> int:
        """Requests this conversation makes."""
        return 1 if self.turns is None else len(self.turns)

    def request_id(self, turn: int) -> str:
        """Name of one turn's request, unique within the workload."""
        return f"{self.conversation_id}/t{turn}"

    def request_seed(self, turn: int, sampling_seed: int = 0) -> int:
        """Seed of one turn's sampling: a hash of both seeds, the conversation and the turn, below 2**63."""
        return stable_seed(self.seed, sampling_seed, self.conversation_id, turn)


class Workload(Protocol):
    """A source of conversations. Built as ``cls(settings, vocab_size=..., tokenizer=...)``.

    ``label`` is what reports print beside every figure: invented prompts change acceptance.
    """

    @property
    def kind(self) -> str:
        """The name it is registered under."""

    @property
    def label(self) -> Label:
        """``natural`` for text people wrote, tokenized for the model that answers; else ``synthetic
        input``."""

    def conversations(self) -> list[Conversation]:
        """Return the conversations in workload order, the same list for the same settings."""


def build_workload(settings: WorkloadSettings, *, vocab_size: int, tokenizer: Tokenizer | None) -> Workload:
    """Build the workload registered under ``settings.kind``.

    :param vocab_size: ids the model has an embedding for.
    :param tokenizer: the model's; None where it has none, which only kinds without text accept.
    :raises UnknownNameError: no such kind.
    :raises WorkloadError: the settings or the data cannot be used.
    """
    factory = WORKLOADS.load(settings.kind, where="workload.kind")
    workload: Workload = factory(settings, vocab_size=vocab_size, tokenizer=tokenizer)
    return workload


class ConversationPrompter:
    """Turns (conversation, turn, earlier answers) into prompt ids."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def prompt_for(
        self, conversation: Conversation, turn: int, previous_output_token_ids: Sequence[Sequence[int]]
    ) -> list[int]:
        """Return the prompt ids of one turn.

        :param previous_output_token_ids: the model's answers to turns 0..turn-1, as committed ids. They are
            decoded without special tokens and put through the chat template, as a chat client would send
            them.
        :raises WorkloadError: the tokenizer is missing, or its chat template refuses the messages.
        """
        if not 0 <= turn < conversation.num_turns:
            raise ValueError(f"{conversation.conversation_id} has no turn {turn}")
        if len(previous_output_token_ids) != turn:
            raise ValueError(f"turn {turn} needs {turn} answers, got {len(previous_output_token_ids)}")
        if conversation.prompt_token_ids is not None:
            return list(conversation.prompt_token_ids)
        tokenizer = require_tokenizer(self._tokenizer)
        messages = list(conversation.history)
        assert conversation.turns is not None
        for text, answer in zip(conversation.turns, previous_output_token_ids, strict=False):
            messages += [Message("user", text), Message("assistant", tokenizer.decode(answer))]
        messages.append(Message("user", conversation.turns[turn]))
        try:
            return tokenizer.apply_chat_template(messages)
        except WorkloadError as error:
            where = f"conversation {conversation.conversation_id}, turn {turn}"
            raise WorkloadError(error.what, where=where, hint=error.hint) from error


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return ``tokenizer``, or raise a :class:`WorkloadError` that says what works without one."""
    if tokenizer is None:
        raise WorkloadError(
            "text needs a tokenizer, and this model has none",
            where="workload.kind",
            hint="workload.kind=random_tokens, or a model that comes with its tokenizer (model=smollm2-135m)",
        )
    return tokenizer


def refuse_settings(settings: WorkloadSettings, *names: str) -> None:
    """Raise a :class:`WorkloadError` if one of ``names`` is set, since this kind has no use for it."""
    unset = WorkloadSettings(kind=settings.kind)
    for name in names:
        value = getattr(settings, name)
        if value != getattr(unset, name):
            raise WorkloadError(
                f"{settings.kind} has no use for it, found {value!r}",
                where=f"workload.{name}",
                hint="leave it out",
            )


def stable_seed(*parts: int | str) -> int:
    """Hash ``parts`` to 0 <= seed < 2**63: the same on every machine, in every process and Python version."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def length_bounds(length: LengthRange) -> tuple[int, int]:
    """Return (lowest, highest) of a length setting."""
    return (length, length) if isinstance(length, int) else length


def draw_length(length: LengthRange, *key: int | str) -> int:
    """Draw a length uniformly from ``length``; ``key`` says for what, and fixes the draw."""
    low, high = length_bounds(length)
    return low + stable_seed("length", *key) % (high - low + 1)


def _require_within(name: str, value: int, highest: int) -> None:
    if not 1 <= value <= highest:
        raise WorkloadError(f"must lie in 1..{highest}, found {value}", where=f"workload.{name}")
