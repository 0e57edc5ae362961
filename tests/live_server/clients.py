"""Clients for tests that hang up, abort and crowd: raw connections, and a server's figures."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable

import httpx

from tests.live import LiveServer


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Poll; an assertion when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.02)


def metrics(server: LiveServer) -> dict[str, float]:
    """The figures without labels of /metrics, by name without `srtkit_`."""
    text = httpx.get(f"{server.base_url}/metrics", timeout=30).text
    return {name: float(value) for name, value in re.findall(r"^srtkit_(\w+) (\S+)$", text, re.MULTILINE)}


def wait_for_rest(server: LiveServer, **at_least: float) -> None:
    """Wait until nothing runs or waits and no page belongs to a sequence, with these figures reached.

    Give figures that tell the present from the past: the server learns of its engine twice a second.
    """

    def at_rest() -> bool:
        figures = metrics(server)
        resting = figures["running"] == figures["waiting"] == figures["pages_used"] == 0
        return resting and all(figures[name] >= value for name, value in at_least.items())

    wait_until(at_rest)


def complete(server: LiveServer, prompt: str, max_tokens: int, **more: object) -> str:
    """A greedy continuation of exactly `max_tokens` tokens."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}
    answer = httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def send(server: LiveServer, prompt: str, max_tokens: int, **more: object) -> socket.socket:
    """Send a request, by default a streaming one, and leave the answer unread."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True, **more}
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", int(server.base_url.rpartition(":")[2])), timeout=30)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def read_rest(connection: socket.socket) -> str:
    """All that comes until the server closes the connection, or the chunked answer ends."""
    data = b""
    with connection:
        while not data.endswith(b"0\r\n\r\n") and (part := connection.recv(1 << 16)):
            data += part
    return data.decode()


def events(text: str) -> list[str]:
    """The data of all server-sent events in it."""
    return re.findall(r"^data: (.*)$", text, re.MULTILINE)
