"""Text to ids and back, with the model's chat template.

A directory with ``tokenizer.json`` is read by the ``tokenizers`` library alone, in a fraction of a second.
Other forms (SentencePiece) go through transformers, which takes seconds to import. GGUF files are turned into
such a directory by the model loader.

Models with seeded random weights have no tokenizer. :meth:`Tokenizer.byte_level` stands in for it there: ids
are the bytes of the text behind three control tokens. Prompts then mean nothing to anybody, so workloads
that use it are labelled ``synthetic input``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specbench.errors import CheckpointError, ModelNotFoundError, WorkloadError
from specbench.workloads.byte_tokenizer import BYTE_CHAT_TEMPLATE, ByteBackend
from specbench.workloads.chat_template import ChatTemplate, Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

# Tokens that end an answer in a chat. A checkpoint's files often name only the end of a document.
CHAT_END_TOKENS = ("<|im_end|>", "<|eot_id|>")

_TRANSFORMERS_FILES = ("tokenizer.model", "tokenizer_config.json", "vocab.json")


class Backend(Protocol):
    """What turns text into ids and back; control tokens in the text become their own ids."""

    @property
    def num_tokens(self) -> int:
        """Ids it can give: 0..num_tokens-1."""

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens."""

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, or None."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``, nothing added."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of any ids below the model's vocabulary size."""


class Tokenizer:
    """A tokenizer with its chat template.

    :param is_natural: False for the byte-level stand-in.
    :param source: where it came from, for messages.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        chat_template: ChatTemplate | None,
        eos_token_ids: Iterable[int],
        source: str,
        is_natural: bool = True,
    ) -> None:
        self._backend = backend
        self.chat_template = chat_template
        self.source = source
        self.is_natural = is_natural
        self.vocab_size = backend.num_tokens
        chat_ends = (backend.token_id(token) for token in CHAT_END_TOKENS)
        special = backend.special_token_ids
        ends = {*eos_token_ids, *(token_id for token_id in chat_ends if token_id in special)}
        self.eos_token_ids: tuple[int, ...] = tuple(sorted(token_id for token_id in ends if token_id is not None))
        self.special_token_ids: frozenset[int] = special | set(self.eos_token_ids)

    @classmethod
    def load(cls, directory: Path | str) -> Tokenizer:
        """Read the tokenizer of a checkpoint directory.

        :raises ModelNotFoundError: there is no tokenizer in ``directory``.
        :raises CheckpointError: its files cannot be read.
        """
        directory = Path(directory)
        if (directory / "tokenizer.json").is_file():
            return _from_directory(directory)
        if any((directory / name).is_file() for name in _TRANSFORMERS_FILES):
            return _from_transformers(directory)
        raise ModelNotFoundError(
            "no tokenizer here: expected tokenizer.json",
            where=str(directory),
            hint="copy the model's tokenizer.json and tokenizer_config.json there, or use random_tokens",
        )

    @classmethod
    def byte_level(cls, vocab_size: int) -> Tokenizer:
        """Return the stand-in for a model of ``vocab_size`` ids that has no tokenizer of its own.

        :raises WorkloadError: the vocabulary cannot hold 256 bytes and the control tokens.
        """
        backend = ByteBackend()
        if vocab_size < backend.num_tokens:
            raise WorkloadError(
                f"a vocabulary of {vocab_size} is too small for text: bytes and control tokens need "
                f"{backend.num_tokens}",
                where="workload.kind",
                hint="workload.kind=random_tokens",
            )
        template = ChatTemplate(BYTE_CHAT_TEMPLATE, {}, where="built-in byte-level tokenizer")
        return cls(backend, chat_template=template, eos_token_ids=(), source="byte-level", is_natural=False)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; no beginning or end token is added."""
        return self._backend.encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``; spaces are left as they are, ids without a token are skipped."""
        return self._backend.decode(token_ids, skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Return the ids of a chat, by default up to where the assistant begins to speak.

        :raises WorkloadError: the model has no chat template, or it refuses these messages.
        """
        if self.chat_template is None:
            raise WorkloadError(
                "this model has no chat template, so it was not trained to chat",
                where=self.source,
                hint="an instruct model, or workload.kind=random_tokens",
            )
        return self.encode(self.chat_template.render(messages, add_generation_prompt=add_generation_prompt))


class FastBackend:
    """:class:`Backend` over the ``tokenizers`` library."""

    def __init__(self, fast: FastTokenizer) -> None:
        # A saved tokenizer may carry the padding and truncation of somebody's training run.
        fast.no_padding()
        fast.no_truncation()
        self._fast = fast
        self.num_tokens: int = fast.get_vocab_size(with_added_tokens=True)
        added = fast.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    def token_id(self, token: str) -> int | None:
        """See :class:`Backend`."""
        token_id: int | None = self._fast.token_to_id(token)
        return token_id

    def encode(self, text: str) -> list[int]:
        """See :class:`Backend`."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """See :class:`Backend`."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))


def _from_directory(directory: Path) -> Tokenizer:
    from tokenizers import Tokenizer as FastTokenizer

    file = directory / "tokenizer.json"
    try:
        backend = FastBackend(FastTokenizer.from_file(str(file)))
    except Exception as error:  # the library raises plain Exception for anything wrong in the file
        raise CheckpointError(f"not a readable tokenizer: {error}", where=str(file)) from error
    config = _read_object(directory / "tokenizer_config.json")
    special_tokens = _special_tokens(config, _read_object(directory / "special_tokens_map.json"))
    source = _template_source(directory, config)
    template = ChatTemplate(source, special_tokens, where=str(directory)) if source is not None else None
    eos = _declared_ids(_read_object(directory / "generation_config.json").get("eos_token_id"))
    eos_token_id = backend.token_id(special_tokens.get("eos_token", ""))
    eos += [] if eos_token_id is None else [eos_token_id]
    return Tokenizer(backend, chat_template=template, eos_token_ids=eos, source=str(directory))


def _from_transformers(directory: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    source = str(directory)
    try:
        loaded: Any = AutoTokenizer.from_pretrained(source, local_files_only=True)
        backend = FastBackend(loaded.backend_tokenizer)
    except Exception as error:  # conversion fails in as many ways as there are formats
        raise CheckpointError(
            f"transformers cannot read this tokenizer: {error}",
            where=source,
            hint="a directory with the model's tokenizer.json",
        ) from error
    text = loaded.chat_template
    text = text.get("default") if isinstance(text, dict) else text
    names = {name: str(token) for name, token in loaded.special_tokens_map.items() if isinstance(token, str)}
    template = ChatTemplate(text, names, where=source) if isinstance(text, str) else None
    eos = _declared_ids(loaded.eos_token_id)
    return Tokenizer(backend, chat_template=template, eos_token_ids=eos, source=source)


def _special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """Names of the special tokens; the first config that has one wins. A token is a text or an object."""
    found: dict[str, str] = {}
    for config in configs:
        for name in SPECIAL_TOKEN_NAMES:
            token = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found.setdefault(name, token)
    return found


def _template_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own wins over the config, ``default`` over other names."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot read the chat template: {error}", where=str(file)) from error
    source = config.get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict)]
        source = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def _declared_ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [token_id for token_id in values if isinstance(token_id, int) and not isinstance(token_id, bool)]


def _read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object; a file that is not there is an empty one."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"not readable JSON: {error}", where=str(file)) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"expected a JSON object, found {type(value).__name__}", where=str(file))
    return value
