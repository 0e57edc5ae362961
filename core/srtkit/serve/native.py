"""The native routes: POST /generate, /tokenize, /detokenize. Token ids in and out, no chat."""

import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from srtkit.serve.answers import answer
from srtkit.serve.errors import RequestError, json_response
from srtkit.serve.generation import Piece
from srtkit.serve.openai import token_logprobs
from srtkit.serve.prompts import ServedModel, build_prompts, check_ids, encode, off_loop, token_lists
from srtkit.serve.requests import GenerationFields, Logprobs, Text, json_body, parse
from srtkit.serve.service import Job, Service, new_id

MAX_TOKENS = 128
"""How many tokens are generated when the request does not say."""


class GenerateFields(GenerationFields, kw_only=True):
    """The table `sampling_params`. `logprobs` is how many of the likeliest tokens to list besides the chosen one."""

    logprobs: Logprobs | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of /generate: `text` or `input_ids`, one or a list."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] = {}
    model: str = "default"
    rid: Text | None = None
    stream: bool = False


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


class _Results:
    """The `Shape` of /generate. Streamed events hold what is new, with its index; usage is that so far."""

    def __init__(self, job: Job, model: ServedModel, many: bool, logprobs: bool) -> None:
        self._job = job
        self._tokenizer = model.tokenizer if logprobs else None
        self._many = many

    def event(self, index: int, piece: Piece) -> dict[str, Any]:
        """What is new of one generation."""
        one = self._job.generations[index]
        counts = {"prompt_tokens": one.prompt_tokens, "completion_tokens": one.completion_tokens}
        meta = {"id": self._job.id, "finish_reason": piece.finish_reason, "cached_tokens": one.cached_tokens, **counts}
        result = {"index": index, "text": piece.text, "output_ids": piece.token_ids, "meta_info": meta}
        if self._tokenizer is not None:
            result["logprobs"] = token_logprobs(self._tokenizer, piece.logprobs)
        return result

    def last(self) -> None:
        """No further event."""

    def whole(self, pieces: list[Piece]) -> object:
        """One result, or a list when a list was sent or several were asked for."""
        results = [self.event(i, piece) for i, piece in enumerate(pieces)]
        return results if self._many else results[0]


def router(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()
    model = service.model

    @routes.post("/generate")
    async def generate(request: Request) -> Response:
        """Continue texts or token ids."""
        arrived = time.monotonic()
        fields = parse(await json_body(request), GenerateRequest, service.unknown_field)
        sampling = parse(fields.sampling_params, GenerateFields, service.unknown_field, "sampling_params.")
        model.check_name(fields.model)
        prompts = fields.text if fields.input_ids is None else fields.input_ids
        if prompts is None or (fields.text is not None and fields.input_ids is not None):
            raise RequestError("text", "either text or input_ids is required")
        lists = await token_lists(model, prompts, "text" if fields.input_ids is None else "input_ids")
        opened = [
            prompt for ids in lists for prompt in build_prompts(ids, sampling, model, MAX_TOKENS, sampling.logprobs)
        ]
        job = service.open(opened, fields.rid or new_id("gen"), arrived, sampling.n)
        many = len(opened) > 1 or (isinstance(prompts, list) and not isinstance(prompts[0], int))
        return await answer(
            service, request, job, _Results(job, model, many, sampling.logprobs is not None), fields.stream
        )

    @routes.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        """Token ids of a text."""
        fields = parse(await json_body(request), TokenizeRequest, service.unknown_field)
        model.check_name(fields.model)
        text, add = fields.prompt, fields.add_special_tokens
        ids = await off_loop(len(text), lambda: encode(model, text, "prompt", add_special=add))
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": model.max_context})

    @routes.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included unless they are to be skipped."""
        fields = parse(await json_body(request), DetokenizeRequest, service.unknown_field)
        model.check_name(fields.model)
        if model.tokenizer is None:
            raise RequestError("tokens", "the model was loaded without a tokenizer")
        check_ids(fields.tokens, model, "tokens")
        return json_response({"prompt": model.tokenizer.decode(fields.tokens, fields.skip_special_tokens)})

    return routes
