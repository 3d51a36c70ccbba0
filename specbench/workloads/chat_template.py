"""Chat templates: the Jinja programs that checkpoints carry, rendered as transformers renders them.

A template is somebody else's program, so it runs in Jinja's immutable sandbox, and whatever goes wrong inside
comes out as a :class:`WorkloadError`. What a template may use beside Jinja itself: ``raise_exception``,
``strftime_now``, a ``tojson`` that does not escape HTML, loop controls, and the ``generation`` block.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specbench.errors import CheckpointError, WorkloadError

if TYPE_CHECKING:
    from jinja2 import Environment, Template, nodes
    from jinja2.parser import Parser


@dataclass(frozen=True)
class Message:
    """One message of a chat: role is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


class ChatTemplate:
    """A compiled chat template.

    :param source: the Jinja text.
    :param special_tokens: ``bos_token``, ``eos_token``, ... as the template may name them.
    :param where: the file it came from, for errors.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, where: str) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._where = where
        # One moment for the object's whole life: some templates print the date, and a run must not change its
        # prompts at midnight.
        self._now = datetime.now()

    @cached_property
    def _template(self) -> Template:
        from jinja2 import TemplateError

        try:
            return _environment(self._now.strftime).from_string(self.source)
        except TemplateError as error:
            raise CheckpointError(f"the chat template does not compile: {error}", where=self._where) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the chat as one text, control tokens spelled out.

        :raises WorkloadError: the template refuses these messages.
        :raises CheckpointError: the template is not valid Jinja.
        """
        template = self._template
        chat = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return template.render(
                messages=chat,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:  # a template is a program: it can raise anything
            roles = ", ".join(message.role for message in messages)
            raise WorkloadError(
                f"the model's chat template refuses a chat with the roles {roles}: {error}",
                where=self._where,
                hint="leave out the system prompt, or let user and assistant messages alternate",
            ) from error


def _environment(strftime: Callable[[str], str]) -> Environment:
    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """``{% generation %}`` marks the assistant's text for training; rendering takes its body as it is."""

        tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime
    return environment
