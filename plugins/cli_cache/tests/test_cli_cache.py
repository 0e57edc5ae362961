"""`srt cache show` against a small server on loopback: what it draws, and what it says where it cannot draw."""

from __future__ import annotations

import argparse
import copy
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import srtkit_plugin_cli_cache as plugin
from srtkit.spec.errors import ConfigError, EngineError, PeerGone
from srtkit_plugin_cli_cache.draw import drawing

PAGES = {"total": 1024, "free": 604, "in_use": 100, "retiring": 20, "cached": 300, "moving": 0, "pinned": 80}
PARENT = {"parent": -1, "length": 64, "tokens": 64, "ids": [1, 2], "text": "You are\na \x1b[31mhelper", "namespace": ""}
CHILD = {"parent": 0, "length": 80, "tokens": 16, "ids": [3], "text": None, "namespace": ""}
SALTED = {"parent": -1, "length": 1, "tokens": 1, "ids": [4], "text": "Hi", "namespace": "1a2b3c4d"}
ANSWER: dict[str, Any] = {
    "prompt_tokens": 52000,
    "cached_tokens": 31000,
    "hit_rate": 0.596,
    "pages": {"full": PAGES},
    "tiers": {
        "device": {"pages": 1024, "used": 420},
        "host": {"pages": 4000, "used": 300, "bytes": 12 << 20, "read": 7, "written": 300, "failed": 0},
        "storage": {"attached": 0, "written": 20, "misses": 3},
    },
    "entries": 9,
    "prefixes": [
        {**PARENT, "pages": {"full": 4, "state": 1}, "tiers": {"host": 4}, "hits": 12, "pins": 3},
        {**CHILD, "pages": {"full": 1}, "tiers": {}, "hits": 1, "pins": 0},
        {**SALTED, "pages": {"full": 1}, "tiers": {}, "hits": 0, "pins": 0},
    ],
}


class Stub(BaseHTTPRequestHandler):
    """Answers as its server's `say` says."""

    def do_GET(self) -> None:
        status, body = self.server.say  # type: ignore[attr-defined]
        self.server.seen = self.path, self.headers.get("Authorization")  # type: ignore[attr-defined]
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    http: Any = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    http.url = f"http://127.0.0.1:{http.server_address[1]}"
    http.say = 200, json.dumps(ANSWER)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield http
    http.shutdown()
    thread.join()
    http.server_close()


def run(*args: str) -> int:
    parser = argparse.ArgumentParser()
    plugin.configure(parser)
    return plugin.run(parser.parse_args(["show", *args]))


def drawn(answer: dict[str, Any]) -> list[str]:
    console = Console(width=200, record=True, highlight=False, quiet=False)
    with console.capture() as capture:
        console.print(drawing(answer))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_prefixes_are_branches_of_what_they_extend() -> None:
    lines = drawn(ANSWER)
    assert lines == [
        "59.6% of 52,000 prompt tokens were cached",
        "full    1,024 pages: 120 in use, 300 cached (80 pinned), 604 free",
        "host    300 of 4,000 pages (12 MiB), 300 written, 7 read",
        "storage detached, 20 written, 3 misses",
        "3 of 9 prefixes",
        "├── You are⏎a ·[31mhelper…  64 tokens · 4 pages + 1 state · 12 hits · held by 3 · host 4",
        "│   └── 3…  16 tokens · 1 page · 1 hit",
        "└── Hi  salt 1a2b3c4d  1 token · 1 page · 0 hits",
    ]


def test_an_empty_cache_is_drawn() -> None:
    answer = copy.deepcopy(ANSWER) | {"hit_rate": None, "prefixes": [], "entries": 0}
    assert drawn(answer)[0] == "no prompts yet"
    assert drawn(answer)[-1] == "0 of 0 prefixes"


def test_show_asks_draws_and_writes_a_picture(server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "cache.svg"
    assert run(server.url + "/", "--limit", "7", "--api-key", "word", "--svg", str(picture)) == 0
    assert server.seen == ("/cache?limit=7", "Bearer word")
    assert "held by 3" in capsys.readouterr().out
    svg = picture.read_text("utf-8")
    assert svg.startswith("<svg")
    assert "url(http" not in svg
    with pytest.raises(ConfigError, match="--svg"):
        run(server.url, "--svg", str(tmp_path / "none" / "cache.svg"))


def test_json_is_the_servers_answer(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(server.url, "--json") == 0
    assert json.loads(capsys.readouterr().out) == ANSWER


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (401, "", ConfigError, "wants an API key"),
        (404, "", ConfigError, r"(?s)has no route /cache.*\[routes\]"),
        (503, '{"error": {"message": "the engine has stopped"}}', EngineError, "answered 503: the engine has stopped"),
        (200, "<html>", EngineError, "not that of srtkit"),
        (200, "[]", EngineError, "not that of srtkit"),
    ],
)
def test_one_sentence_for_what_goes_wrong(server: Any, status: int, body: str, error: type, words: str) -> None:
    server.say = status, body
    with pytest.raises(error, match=words):
        run(server.url)


def test_no_server_and_no_url() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        with pytest.raises(PeerGone, match="no server answers there"):
            run(f"http://127.0.0.1:{unused.getsockname()[1]}")
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        run("127.0.0.1:1")


def test_descriptor_imports_no_client_and_no_torch() -> None:
    code = "import sys, srtkit_plugin_cli_cache; print({'httpx', 'rich', 'torch'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
