"""A small OpenAI-compatible chat server on loopback: real sockets, real server-sent events, no model."""

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
    """What the server will say, and what it was asked."""

    url: str = ""
    pieces: list[str] = field(default_factory=lambda: ["Hel", "lo, ", "wörld"])
    finish: str | None = "stop"
    status: int = 200
    refusal: str = ""
    error_event: str = ""
    done: bool = True
    endless: bool = False
    api_key: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: StubServer

    def do_GET(self) -> None:
        if self._refused():
            return
        self._whole(200, json.dumps({"data": [{"id": "tiny"}, {"id": "other"}]}))

    def do_POST(self) -> None:
        stub = self.stub
        stub.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self._refused():
            return
        if stub.status != 200:
            self._whole(stub.status, stub.refusal)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self._reply()
        except OSError:
            stub.hung_up.set()

    def _refused(self) -> bool:
        key, given = self.stub.api_key, self.headers.get("Authorization", "").encode("latin-1")
        if key is None or given == f"Bearer {key}".encode():
            return False
        self._whole(401, '{"error": {"message": "who are you?"}}')
        return True

    def _reply(self) -> None:
        stub = self.stub
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for piece in stub.pieces:
            self._event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
        while stub.endless:
            stub.hung_up.wait(0.01)
            self._event({"choices": [{"delta": {"content": "."}, "finish_reason": None}]})
        if stub.error_event:
            self._event({"error": {"message": stub.error_event}})
        if stub.finish:
            self._event({"choices": [{"delta": {}, "finish_reason": stub.finish}]})
        if stub.done:
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _whole(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the tests look at `bodies`."""


@pytest.fixture
def stub() -> Iterator[StubServer]:
    """A running server; change its fields before asking it."""
    stub = StubServer()
    handler = type("Handler", (_Handler,), {"stub": stub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield stub
    stub.endless = False
    server.shutdown()
    thread.join()
    server.server_close()
