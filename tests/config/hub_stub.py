"""A model hub on the loopback interface: as much of its HTTP API as a download uses.

Run as a program: `python hub_stub.py SOURCE...` serves the repository org/name, resolves each source in
turn against it and prints a JSON list of outcomes and of the requests that arrived.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

COMMIT = "a" * 40
MODEL = {
    "README.md": b"text",
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "chat_template.jinja": b"{{ x }}",
    "model.safetensors": b"weights",
    "consolidated.safetensors": b"the same in another form",
    "pytorch_model.bin": b"pickle",
    "original/model.safetensors": b"no",
}
REPOSITORIES = {
    "org/name": MODEL,
    "org/quants": {"a.Q4.gguf": b"four", "a.Q8.gguf": b"eight"},
}


class Hub(BaseHTTPRequestHandler):
    """Answers for `REPOSITORIES`, refuses `org/gated`, knows no other."""

    seen: ClassVar[list[tuple[str, str, str]]] = []

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        """Headers of a file."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """A file, or what the API says of a repository."""
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.seen.append((self.command, path, self.headers.get("Authorization", "")))
        parts = path.removeprefix("/api/models").strip("/").split("/")
        repo, rest = "/".join(parts[:2]), parts[2:]
        files = REPOSITORIES.get(repo)
        if repo == "org/gated":
            self._send(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
        elif files is None:
            self._send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        elif len(rest) > 1 and rest[1] not in ("main", "v2", COMMIT):
            self._send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        elif rest[:1] == ["resolve"]:
            data = files["/".join(rest[2:])]
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            self._send(200, data, body, {"ETag": etag, "X-Repo-Commit": COMMIT})
        elif rest[:1] == ["tree"]:
            tree = [{"type": "file", "path": name, "size": len(data), "oid": "b" * 40} for name, data in files.items()]
            self._send(200, json.dumps(tree).encode(), body, {})
        else:
            siblings = [{"rfilename": name} for name in files]
            self._send(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode(), body, {})

    def _send(self, status: int, data: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


def resolve_all(sources: list[str]) -> list[dict[str, object]]:
    """The outcome of each source: its files, or the error, and what the hub saw.

    `source@revision` names a revision; the word `offline` closes the hub.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_DISABLE_XET": "1"}
    from srtkit.config.source import resolve_source
    from srtkit.spec.errors import LoaderError

    outcomes: list[dict[str, object]] = []
    for text in sources:
        if text == "offline":
            server.shutdown()
            server.server_close()
            continue
        source, _, revision = text.partition("@")
        Hub.seen.clear()
        try:
            path = resolve_source(source, revision or None)
            outcome = {"path": path.name, "files": sorted(os.listdir(path)) if path.is_dir() else path.read_text()}
        except LoaderError as error:
            outcome = {"error": error.cause, "remedy": error.remedy}
        outcomes.append({**outcome, "seen": list(Hub.seen)})
    return outcomes


if __name__ == "__main__":
    print(json.dumps(resolve_all(sys.argv[1:])))
