"""The byte-level stand-in for models without a tokenizer.

Ids: 0 end of text, 1 begin of a message, 2 end of a message, then 3 + b for the byte b. A random model
answers with any id of its vocabulary, so ids beyond the bytes decode too, one printable ASCII character
each: answers keep their length when they come back as part of the next prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FIRST_BYTE_ID = len(CONTROL_TOKENS)
NUM_BYTE_TOKENS = FIRST_BYTE_ID + 256

BYTE_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CONTROL_PATTERN = re.compile("(" + "|".join(re.escape(token) for token in CONTROL_TOKENS) + ")")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
_PRINTABLE_START, _PRINTABLE_COUNT = 0x21, 94


class ByteBackend:
    """Backend of :meth:`specbench.workloads.tokenizer.Tokenizer.byte_level`."""

    num_tokens = NUM_BYTE_TOKENS
    special_token_ids = frozenset(range(FIRST_BYTE_ID))

    def token_id(self, token: str) -> int | None:
        """Return the id of a control token, or None."""
        return CONTROL_TOKENS.index(token) if token in CONTROL_TOKENS else None

    def encode(self, text: str) -> list[int]:
        """Return one id a byte of UTF-8; control tokens spelled out in the text become their ids."""
        token_ids: list[int] = []
        for piece in _CONTROL_PATTERN.split(text):
            control = self.token_id(piece)
            plain = (FIRST_BYTE_ID + byte for byte in piece.encode())
            token_ids.extend(plain if control is None else [control])
        return token_ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return text for any ids; a byte that is not part of valid UTF-8 becomes ``?``."""
        data = bytearray()
        for token_id in token_ids:
            if token_id < FIRST_BYTE_ID:
                data += b"" if skip_special_tokens else CONTROL_TOKENS[token_id].encode()
            elif token_id < NUM_BYTE_TOKENS:
                data.append(token_id - FIRST_BYTE_ID)
            else:
                data.append(_PRINTABLE_START + token_id % _PRINTABLE_COUNT)
        return _NOT_UTF8.sub("?", data.decode("utf-8", errors="surrogateescape"))
