"""A small OpenAI-compatible completions server on loopback: real sockets, chunked server-sent events, no model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class StubServer:
    """How the server answers, and what it was asked. `merge` tokens go into one event."""

    url: str = ""
    port: int = 0
    merge: int = 1
    cached: int = 0
    missing_tokens: int = 0
    status: int = 200
    refusal: bytes = b'{"error": {"message": "queue full"}}'
    usage: bool = True
    hang_up_after: int | None = None
    silent: threading.Event | None = None
    api_key: str | None = None
    info: dict[str, Any] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    flushed: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: StubServer

    def do_GET(self) -> None:
        if not self._knows_the_key():
            self._whole(401, b"{}")
        elif self.path == "/v1/models":
            self._whole(200, b'{"data": [{"id": "tiny"}]}')
        elif self.path == "/server_info" and self.stub.info is not None:
            self._whole(200, json.dumps(self.stub.info).encode())
        else:
            self._whole(404, b"not here")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._knows_the_key():
            self._whole(401, b"{}")
            return
        if self.path == "/flush_cache":
            self.stub.flushed += 1
            self._whole(200, b"{}")
            return
        request = json.loads(body)
        self.stub.bodies.append(request)
        if self.stub.silent is not None:
            self.stub.silent.wait(30)
        if self.stub.status != 200:
            self._whole(self.stub.status, self.stub.refusal)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        self._stream(request)

    def _knows_the_key(self) -> bool:
        key, given = self.stub.api_key, self.headers.get("Authorization", "").encode("latin-1")
        return key is None or given == f"Bearer {key}".encode()

    def _stream(self, request: dict[str, Any]) -> None:
        stub = self.stub
        tokens = request["max_tokens"] - stub.missing_tokens
        for sent, start in enumerate(range(0, tokens, stub.merge)):
            if sent == stub.hang_up_after:
                return
            text = "x" * min(stub.merge, tokens - start)
            self._event({"choices": [{"text": text, "finish_reason": None}]})
        self._event({"choices": [{"text": "", "finish_reason": "length"}]})
        if stub.usage:
            details = {"cached_tokens": stub.cached}
            counts = {"prompt_tokens": len(request["prompt"]), "completion_tokens": tokens}
            self._event({"choices": [], "usage": counts | {"prompt_tokens_details": details}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _whole(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the tests look at `bodies`."""


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: clients that give up are part of the tests, and other faults show in what the client got."""


@pytest.fixture
def stub() -> Iterator[StubServer]:
    """A running server; change its fields before asking it."""
    stub = StubServer()
    server = _Listener(("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": stub}))
    stub.port = server.server_address[1]
    stub.url = f"http://127.0.0.1:{stub.port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield stub
    if stub.silent is not None:
        stub.silent.set()
    server.shutdown()
    thread.join()
    server.server_close()
