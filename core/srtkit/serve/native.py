"""The native routes: POST /generate, /tokenize, /detokenize. Token ids in and out, no chat."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from srtkit.serve.answers import answer, token_logprobs
from srtkit.serve.errors import json_response
from srtkit.serve.generation import Job, Piece
from srtkit.serve.prompts import check_ids, off_loop, prompts_of
from srtkit.serve.requests import GenerationFields, Logprobs, Rid, json_body, parse
from srtkit.serve.service import Service, new_id
from srtkit.spec.errors import RequestError
from srtkit.text.tokenizer import Tokenizer

# How many tokens are generated when the request does not say.
MAX_TOKENS = 128


class GenerateFields(GenerationFields, kw_only=True):
    """The table `sampling_params`. `logprobs` is how many of the likeliest tokens to list besides the chosen one."""

    logprobs: Logprobs | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of /generate: `text` or `input_ids`, one or a list."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] = {}
    model: str = "default"
    rid: Rid | None = None
    stream: bool = False


_IN_TABLE = dict.fromkeys(GenerateFields.__struct_fields__, "put it into sampling_params")
_IN_TABLE["prompt"] = "this route calls it text"
_OUTSIDE = dict.fromkeys(GenerateRequest.__struct_fields__, "put it beside sampling_params")


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of /tokenize."""

    prompt: str
    model: str = "default"
    add_special_tokens: bool = True


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of /detokenize."""

    tokens: list[int]
    model: str = "default"
    skip_special_tokens: bool = False


@dataclass(frozen=True)
class _Results:
    """The `Shape` of /generate. Streamed events hold what is new, with its index; usage is that so far.

    `tokenizer` None: no log-probabilities. `many`: the whole is a list.
    """

    job: Job
    tokenizer: Tokenizer | None
    many: bool

    def event(self, index: int, piece: Piece) -> dict[str, Any]:
        """What is new of one generation."""
        one = self.job.generations[index]
        counts = {"prompt_tokens": one.prompt_tokens, "completion_tokens": one.completion_tokens}
        meta = {"id": self.job.id, "finish_reason": piece.finish_reason, "cached_tokens": one.cached_tokens, **counts}
        result = {"index": index, "text": piece.text, "output_ids": piece.token_ids, "meta_info": meta}
        if self.tokenizer is not None:
            result["logprobs"] = token_logprobs(self.tokenizer, piece.logprobs)
        return result

    def last(self) -> None:
        """No further event."""

    def whole(self, pieces: list[Piece]) -> object:
        """One result, or a list when a list was sent or several were asked for."""
        results = [self.event(i, piece) for i, piece in enumerate(pieces)]
        return results if self.many else results[0]


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    model = service.model

    @app.post("/generate")
    async def generate(request: Request) -> Response:
        """Continue texts or token ids."""
        arrived = time.monotonic()
        fields = parse(await json_body(request), GenerateRequest, service.unknown_field, elsewhere=_IN_TABLE)
        sampling = parse(fields.sampling_params, GenerateFields, service.unknown_field, "sampling_params.", _OUTSIDE)
        model.check_name(fields.model)
        param, prompts = ("text", fields.text) if fields.input_ids is None else ("input_ids", fields.input_ids)
        if prompts is None or None not in (fields.text, fields.input_ids):
            raise RequestError("text", "text and input_ids are two forms of the prompt", "send one of them")
        opened = await prompts_of(model, prompts, param, sampling, MAX_TOKENS, sampling.logprobs)
        job = service.open(opened, fields.rid or new_id("gen"), arrived, sampling.n)
        many = len(opened) > 1 or (isinstance(prompts, list) and not isinstance(prompts[0], int))
        results = _Results(job, None if sampling.logprobs is None else model.tokenizer, many)
        return await answer(service, request, job, results, fields.stream)

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        """Token ids of a text."""
        named = dict.fromkeys(("text", "content", "input"), "this route calls it prompt")
        fields = parse(await json_body(request), TokenizeRequest, service.unknown_field, elsewhere=named)
        model.check_name(fields.model)
        encode = partial(model.tokenizer_for("prompt").encode, fields.prompt, add_special=fields.add_special_tokens)
        ids = await off_loop(len(fields.prompt), encode)
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": model.max_context})

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included unless they are to be skipped."""
        named = dict.fromkeys(("input_ids", "ids", "token_ids"), "this route calls it tokens")
        fields = parse(await json_body(request), DetokenizeRequest, service.unknown_field, elsewhere=named)
        model.check_name(fields.model)
        tokenizer = model.tokenizer_for("tokens")
        check_ids(fields.tokens, model, "tokens")
        return json_response({"prompt": tokenizer.decode(fields.tokens, fields.skip_special_tokens)})
