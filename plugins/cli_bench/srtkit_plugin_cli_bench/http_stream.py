"""Sends one POST and records when each streamed event arrived. Knows HTTP, not what the events say.

httptools (a parser in C) on a plain asyncio protocol: the load generator shares the machine with the
server, so what it spends on an event is taken from what it measures.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field

import httptools

from srtkit_plugin_cli_bench.sse import EventDecoder
from srtkit_plugin_cli_bench.target import Target

DONE = b"[DONE]"


@dataclass
class Exchange:
    """What came back. `events` are (perf_counter reading, payload); `refusal` is the body of an answer but 200."""

    sent: float
    status: int = 0
    events: list[tuple[float, bytes]] = field(default_factory=list)
    refusal: bytes = b""
    error: str | None = None


def encode_post(target: Target, path: str, body: bytes) -> bytes:
    """The whole request as bytes, so that nothing is encoded while the clock runs."""
    head = (
        f"POST {target.path}{path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
        f"Content-Type: application/json\r\nAccept: text/event-stream\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n"
    )
    bearer = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in target.bearer.items())
    return head.encode("ascii") + bearer + b"\r\n" + body


async def exchange(target: Target, request: bytes, timeout: float) -> Exchange:
    """Sends `request` on a connection of its own and reads to the end. Failures are recorded, never raised.

    The clock starts before the connection is made, as it does for a user.
    """
    result = Exchange(sent=time.perf_counter())
    loop = asyncio.get_running_loop()
    tls = ssl.create_default_context() if target.scheme == "https" else None
    name = target.host if tls else None
    reader = _Reader(result, request, loop.create_future())
    try:
        async with asyncio.timeout(timeout):
            transport, _ = await loop.create_connection(
                lambda: reader, target.address, target.port, ssl=tls, server_hostname=name
            )
            try:
                await reader.ended
            finally:
                transport.abort()
    except TimeoutError:
        result.error = f"no end within {timeout:g} s"
    except OSError as error:
        result.error = f"{type(error).__name__}: {error}"
    return result


class _Reader(asyncio.Protocol):
    """Feeds the parser; `ended` is set at [DONE], at the end of the message, or when the connection closes."""

    def __init__(self, result: Exchange, request: bytes, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self._result = result
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._decoder = EventDecoder()
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"connection lost: {exc or 'closed before the end of the answer'}")

    # The parser's callbacks.

    def on_headers_complete(self) -> None:
        self._result.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._result.status != 200:
            self._result.refusal += body
            return
        for payload in self._decoder.feed(body):
            self._result.events.append((self._now, payload))
            if payload == DONE:
                self._end(None)

    def on_message_complete(self) -> None:
        self._end(None)

    def _end(self, error: str | None) -> None:
        if not self.ended.done():
            self._result.error = error
            self.ended.set_result(None)
