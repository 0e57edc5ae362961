"""Sends a job's answer, whole or as server-sent events; notices when the client hangs up.

Knows no format: a `Shape` turns pieces into bytes. A slow client blocks its own stream only; what arrives
meanwhile is merged into its next event.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from srtkit.serve.errors import STOPPED, error_body, json_response
from srtkit.serve.generation import Job, Piece, TokenLogprob
from srtkit.serve.service import Service
from srtkit.spec.errors import RequestError
from srtkit.spec.routes import Event
from srtkit.text.tokenizer import Tokenizer

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
HUNG_UP = 499
_LEAST = -9999.0  # JSON has no minus infinity
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Shape(Protocol):
    """The format of a route's answers. `index` is the generation's place in the job."""

    def event(self, index: int, piece: Piece) -> object:
        """Plain data for one event of the stream."""

    def last(self) -> object | None:
        """One more event for the end of the stream, if any."""

    def whole(self, pieces: list[Piece]) -> object:
        """Plain data for the whole answer."""


class EventStream(StreamingResponse):
    """A job as server-sent events."""

    def __init__(self, service: Service, job: Job, shape: Shape) -> None:
        super().__init__(self._events(shape), headers=_STREAM_HEADERS, media_type="text/event-stream")
        self._service = service
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the end, or until the client hangs up."""
        try:
            await unless_gone(receive, self.stream_response(send))
        finally:
            self._service.tell(Event("answer", detail=str(HUNG_UP if self._job.running else self.status_code)))
            self._service.close(self._job)

    async def _events(self, shape: Shape) -> AsyncIterator[bytes]:
        job = self._job
        while job.running:
            body = b"".join([_event(self._data(shape, i, piece)) for i, piece in await job.news()])
            if not job.running:
                last = shape.last()
                body += DONE if last is None else _event(last) + DONE
            yield body

    def _data(self, shape: Shape, index: int, piece: Piece) -> object:
        if piece.finish_reason != "error":
            return shape.event(index, piece)
        stopped = self._service.failure is not None
        return error_body(500, STOPPED.cause if stopped else piece.error, code="generation_failed")


def _event(data: object) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


async def answer(service: Service, request: Request, job: Job, shape: Shape, stream: bool) -> Response:
    """The response to a request whose body has been read. Raises the error a generation failed with."""
    if stream:
        return EventStream(service, job, shape)
    try:
        pieces = await unless_gone(request.receive, job.whole())
    finally:
        service.close(job)
    if pieces is None:
        service.tell(Event("answer", detail=str(HUNG_UP)))
        return Response(status_code=HUNG_UP)
    if failed := next((piece.error for piece in pieces if piece.finish_reason == "error"), ""):
        raise service.failure or RequestError("", failed, status=500, code="generation_failed")
    service.tell(Event("answer", detail="200"))
    return json_response(shape.whole(pieces))


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None if the client hangs up first, and `work` is cancelled."""
    working, listening = asyncio.ensure_future(work), asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        listening.cancel()
        await asyncio.gather(working, listening, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def clamp(logprob: float) -> float:
    """A log-probability that JSON can carry."""
    return max(logprob, _LEAST)


def token_logprobs(tokenizer: Tokenizer, logprobs: list[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities as chat answers have them. `bytes` tell parts of characters apart, which `token` cannot."""

    def entry(id_: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(id_)
        return {"token": data.decode(errors="replace"), "logprob": clamp(logprob), "bytes": list(data)}

    return [{**entry(one.id, one.value), "top_logprobs": [entry(*other) for other in one.top]} for one in logprobs]
