"""POST /v1/chat/completions: messages in, through the model's chat template, the assistant's message out."""

import time
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from srtkit.serve.answers import answer
from srtkit.serve.errors import RequestError
from srtkit.serve.generation import Piece
from srtkit.serve.openai import Envelope, token_logprobs
from srtkit.serve.prompts import ServedModel, build_prompts, check_length, off_loop
from srtkit.serve.requests import AT_THE_TOP, Logprobs, OpenAIRequest, StreamOptions, Unknown, json_body, parse
from srtkit.serve.service import Service, new_id
from srtkit.text.tokenizer import Tokenizer

_RESERVED = frozenset(("self", "messages", "tools", "add_generation_prompt"))
_TEXT_PART = frozenset(("type", "text"))
# The role of a message → the one its template is shown.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class Message(msgspec.Struct):
    """What messages have; further fields are between the client and the template, unless fields are strict."""

    role: str
    content: str | list[dict[str, Any]]
    name: str = ""
    reasoning_content: str = ""


class ChatRequest(OpenAIRequest, kw_only=True):
    """Its body. `chat_template_kwargs` are further names for the template, e.g. `enable_thinking`."""

    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: Logprobs | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class _Choices:
    """Writes choices of messages. A choice's first chunk names its role."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """`tokenizer` None: no log-probabilities."""
        self._tokenizer = tokenizer
        self._begun: set[int] = set()

    def part(self, index: int, piece: Piece) -> dict[str, Any]:
        """What a message grows by."""
        role = {} if index in self._begun else {"role": "assistant"}
        self._begun.add(index)
        return {"index": index, "delta": {**role, "content": piece.text}, **self._rest(piece)}

    def whole(self, index: int, piece: Piece) -> dict[str, Any]:
        """A message."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": index, "message": message, **self._rest(piece)}

    def _rest(self, piece: Piece) -> dict[str, Any]:
        logprobs = self._tokenizer and {"content": token_logprobs(self._tokenizer, piece.logprobs), "refusal": None}
        return {"logprobs": logprobs, "finish_reason": piece.finish_reason}


async def chat_ids(model: ServedModel, fields: ChatRequest, unknown: Unknown) -> list[int]:
    """Token ids of the rendered messages. BOS is the template's to write, so none is added."""
    if not fields.messages:
        raise RequestError("messages", "there are none")
    for i, raw in enumerate(fields.messages):
        place = f"messages[{i}]."
        message = parse(raw, Message, unknown, place)
        if message.role not in ROLES:
            raise RequestError(f"{place}role", f"there is no role {message.role!r}", f"roles: {', '.join(ROLES)}")
        for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
            for name in part.keys() - _TEXT_PART if part.get("type") == "text" else ():  # the template refuses others
                unknown(f"{place}content[{j}].{name}", _TEXT_PART)
    messages, variables = [{**one, "role": ROLES[one["role"]]} for one in fields.messages], fields.chat_template_kwargs
    if reserved := sorted(_RESERVED & variables.keys()):
        raise RequestError(f"chat_template_kwargs.{reserved[0]}", "the name is taken")

    def render() -> list[int]:
        text = model.chat.render(messages, add_generation_prompt=fields.add_generation_prompt, **variables)
        return model.tokenizer_for("messages").encode(text, add_special=False)

    return await off_loop(sum(len(str(message["content"])) for message in messages), render)


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post("/v1/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation."""
        arrived = time.monotonic()
        fields = parse(await json_body(request), ChatRequest, service.unknown_field, elsewhere=AT_THE_TOP)
        options = parse(fields.stream_options, StreamOptions, service.unknown_field, "stream_options.")
        if fields.top_logprobs is not None and not fields.logprobs:
            raise RequestError("top_logprobs", "it needs logprobs to be true")
        model = service.model
        model.check_name(fields.model)
        # A template may know fields of messages that we do not.
        unknown_in_messages = service.unknown_field if service.settings.strict_fields else lambda *_: None
        ids = await chat_ids(model, fields, unknown_in_messages)
        check_length(len(ids), model, "messages")
        prompts = build_prompts(ids, fields, model, None, (fields.top_logprobs or 0) if fields.logprobs else None)
        job = service.open(prompts, fields.rid or new_id("chatcmpl"), arrived, fields.n)
        choices = _Choices(model.tokenizer if fields.logprobs else None)
        kind, choice = ("chat.completion.chunk", choices.part) if fields.stream else ("chat.completion", choices.whole)
        shape = Envelope(job, model.name, kind, choice, options.include_usage)
        return await answer(service, request, job, shape, fields.stream)
