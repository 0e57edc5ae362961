"""Renders chat messages to a prompt with the model's own Jinja template. Knows no tokens.

Templates come with downloaded models, so they run in Jinja's sandbox and see plain data only.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from srtkit.spec.errors import LoaderError, RequestError, SrtError, Unsupported

_PART = "chat template"
_PROBE = "srtkit probe"


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
)
_ENVIRONMENT.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
_ENVIRONMENT.globals["raise_exception"] = _raise_exception
_ENVIRONMENT.globals["strftime_now"] = lambda form: datetime.now().strftime(form)


def _refused(cause: str, remedy: str) -> RequestError:
    return RequestError("messages", cause, remedy, code="invalid_messages")


class ChatTemplate:
    """A compiled template; None for a model that has none. Safe to share between threads.

    Whether it reads message content as text or as a list of parts is found out by rendering a probe, and content
    is converted to that form.
    """

    def __init__(self, template: str | None, bos_token: str = "", eos_token: str = "") -> None:
        """Raises `LoaderError` for a template that does not compile."""
        try:
            self._template = _ENVIRONMENT.from_string(template) if template else None
        except TemplateError as error:
            raise LoaderError(_PART, f"it does not compile: {error}", "fetch the model's files again") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._wants_parts = not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt, BOS included where the template writes one: encode it without special tokens.

        Messages have OpenAI's form, content being text or a list of `{"type": "text", "text": …}`. `variables` are
        further names for the template ("enable_thinking"). Raises `RequestError` for messages that do not fit it,
        `Unsupported` without a template.
        """
        converted = [self._converted(message) for message in messages]
        return self._render(converted, variables | {"add_generation_prompt": add_generation_prompt})

    def _render(self, messages: list[dict[str, Any]], names: Mapping[str, Any]) -> str:
        if self._template is None:
            raise Unsupported(_PART, "this model has no chat template", "use /v1/completions")
        try:
            return self._template.render(
                {"documents": None, "tools": None, **names, **self._tokens, "messages": messages}
            )
        except Exception as error:  # a template is a program: any error can come out of it
            remedy = "change the messages to what this model's template accepts, or use /v1/completions"
            raise _refused(f"the chat template refused them: {error}", remedy) from error

    def _shows(self, content: object) -> bool:
        """Whether the text of a user message with this content comes out."""
        try:
            return _PROBE in self._render([{"role": "user", "content": content}], {"add_generation_prompt": True})
        except SrtError:
            return False

    def _converted(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise _refused(f"a content part is of type {part.get('type')!r}", "send text parts only")
        return {**message, "content": parts if self._wants_parts else "\n".join(part["text"] for part in parts)}
