"""OpenAI's routes: POST /v1/completions, texts or token ids in; POST /v1/chat/completions, messages in.

Messages become one text through the model's chat template. Answers of both share envelope and usage.
"""

import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from srtkit.serve.answers import answer, clamp, token_logprobs
from srtkit.serve.generation import Job, Piece, TokenLogprob
from srtkit.serve.prompts import ServedModel, build_prompts, check_length, off_loop, prompts_of
from srtkit.serve.requests import AT_THE_TOP, Logprobs, OpenAIRequest, StreamOptions, Unknown, json_body, parse
from srtkit.serve.service import Service, new_id
from srtkit.spec.errors import RequestError
from srtkit.text.tokenizer import Tokenizer

# OpenAI's default for completions.
MAX_TOKENS = 16
_RESERVED = frozenset(("self", "messages", "tools", "add_generation_prompt"))
_TEXT_PART = frozenset(("type", "text"))
# The role of a message → the one its template is shown.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}

# How a route writes a choice, given its place in the answer.
Choice = Callable[[int, Piece], dict[str, Any]]


class Message(msgspec.Struct):
    """What messages have; further fields are between the client and the template, unless fields are strict."""

    role: str
    content: str | list[dict[str, Any]]
    name: str = ""
    reasoning_content: str = ""


class CompletionRequest(OpenAIRequest, kw_only=True):
    """The body of completions. `logprobs` is how many of the likeliest tokens to list besides the chosen one."""

    prompt: str | list[str | int | list[int]]
    logprobs: Logprobs | None = None


class ChatRequest(OpenAIRequest, kw_only=True):
    """The body of chat. `chat_template_kwargs` are further names for the template, e.g. `enable_thinking`."""

    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: Logprobs | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class _Envelope:
    """The `Shape` of both routes: a chunk or a whole answer of type `object_`, its choices written by `choice`."""

    def __init__(self, job: Job, model: str, object_: str, choice: Choice, include_usage: bool) -> None:
        self._job = job
        self._choice = choice
        self._include_usage = include_usage
        self._head = {"id": job.id, "object": object_, "created": job.created, "model": model}

    def event(self, index: int, piece: Piece) -> dict[str, Any]:
        """One chunk with one choice."""
        chunk = {**self._head, "choices": [self._choice(index, piece)]}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def last(self) -> dict[str, Any] | None:
        """The chunk of the usage, if it was asked for."""
        return {**self._head, "choices": [], "usage": self._job.usage()} if self._include_usage else None

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._choice(i, piece) for i, piece in enumerate(pieces)]
        return {**self._head, "choices": choices, "usage": self._job.usage()}


class _Texts:
    """Writes choices of text. Keeps how long each one's tokens are so far, for `text_offset`."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """`tokenizer` None: no log-probabilities."""
        self._tokenizer = tokenizer
        self._offsets: dict[int, int] = {}

    def write(self, index: int, piece: Piece) -> dict[str, Any]:
        """A choice, the same in a chunk and in a whole answer."""
        logprobs = None if self._tokenizer is None else self._logprobs(index, piece.logprobs, self._tokenizer)
        return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def _logprobs(self, index: int, logprobs: list[TokenLogprob], tokenizer: Tokenizer) -> dict[str, list[Any]]:
        lengths = [len(tokenizer.token_text(one.id)) for one in logprobs]
        listed = [(*one.top, (one.id, one.value)) for one in logprobs]
        *offsets, self._offsets[index] = accumulate(lengths, initial=self._offsets.get(index, 0))
        return {
            "text_offset": offsets,
            "tokens": [_token(tokenizer, one.id) for one in logprobs],
            "token_logprobs": [clamp(one.value) for one in logprobs],
            "top_logprobs": [{_token(tokenizer, id_): clamp(value) for id_, value in some} for some in listed],
        }


def _token(tokenizer: Tokenizer, id_: int) -> str:
    """A token's text; OpenAI's `bytes:` notation where it is a part of a character."""
    text = tokenizer.token_text(id_)
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in tokenizer.token_bytes(id_)) if "\ufffd" in text else text


class _Messages:
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


async def _chat_ids(model: ServedModel, fields: ChatRequest, unknown: Unknown) -> list[int]:
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
    """Add the routes."""
    model = service.model

    @app.post("/v1/completions")
    async def create_completion(request: Request) -> Response:
        """Continue a text, a list of token ids, or a list of either."""
        arrived = time.monotonic()
        fields = parse(await json_body(request), CompletionRequest, service.unknown_field, elsewhere=AT_THE_TOP)
        options = parse(fields.stream_options, StreamOptions, service.unknown_field, "stream_options.")
        model.check_name(fields.model)
        prompts = await prompts_of(model, fields.prompt, "prompt", fields, MAX_TOKENS, fields.logprobs)
        job = service.open(prompts, fields.rid or new_id("cmpl"), arrived, fields.n)
        choices = _Texts(None if fields.logprobs is None else model.tokenizer)
        shape = _Envelope(job, model.name, "text_completion", choices.write, options.include_usage)
        return await answer(service, request, job, shape, fields.stream)

    @app.post("/v1/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation."""
        arrived = time.monotonic()
        fields = parse(await json_body(request), ChatRequest, service.unknown_field, elsewhere=AT_THE_TOP)
        options = parse(fields.stream_options, StreamOptions, service.unknown_field, "stream_options.")
        if fields.top_logprobs is not None and not fields.logprobs:
            raise RequestError("top_logprobs", "it needs logprobs to be true")
        model.check_name(fields.model)
        # A template may know fields of messages that we do not.
        unknown_in_messages = service.unknown_field if service.settings.strict_fields else lambda *_: None
        ids = await _chat_ids(model, fields, unknown_in_messages)
        check_length(len(ids), model, "messages")
        prompts = build_prompts(ids, fields, model, None, (fields.top_logprobs or 0) if fields.logprobs else None)
        job = service.open(prompts, fields.rid or new_id("chatcmpl"), arrived, fields.n)
        choices = _Messages(model.tokenizer if fields.logprobs else None)
        kind, choice = ("chat.completion.chunk", choices.part) if fields.stream else ("chat.completion", choices.whole)
        shape = _Envelope(job, model.name, kind, choice, options.include_usage)
        return await answer(service, request, job, shape, fields.stream)
