"""POST /v1/completions: texts or token ids in, their continuations out."""

import time
from itertools import accumulate
from typing import Any

from fastapi import FastAPI, Request, Response

from srtkit.serve.answers import answer
from srtkit.serve.generation import Piece, TokenLogprob
from srtkit.serve.openai import Envelope, clamp
from srtkit.serve.prompts import prompts_of
from srtkit.serve.requests import AT_THE_TOP, Logprobs, OpenAIRequest, StreamOptions, json_body, parse
from srtkit.serve.service import Service, new_id
from srtkit.text.tokenizer import Tokenizer

# OpenAI's default for this route.
MAX_TOKENS = 16


class CompletionRequest(OpenAIRequest, kw_only=True):
    """Its body. `logprobs` is how many of the likeliest tokens to list besides the chosen one."""

    prompt: str | list[str | int | list[int]]
    logprobs: Logprobs | None = None


class _Choices:
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


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post("/v1/completions")
    async def create_completion(request: Request) -> Response:
        """Continue a text, a list of token ids, or a list of either."""
        arrived = time.monotonic()
        fields = parse(await json_body(request), CompletionRequest, service.unknown_field, elsewhere=AT_THE_TOP)
        options = parse(fields.stream_options, StreamOptions, service.unknown_field, "stream_options.")
        model = service.model
        model.check_name(fields.model)
        prompts = await prompts_of(model, fields.prompt, "prompt", fields, MAX_TOKENS, fields.logprobs)
        job = service.open(prompts, fields.rid or new_id("cmpl"), arrived, fields.n)
        choices = _Choices(None if fields.logprobs is None else model.tokenizer)
        shape = Envelope(job, model.name, "text_completion", choices.write, options.include_usage)
        return await answer(service, request, job, shape, fields.stream)
