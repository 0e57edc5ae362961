"""A client of `srt serve`: token ids in and out, one connection a request. Knows routes, no plugin."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from srtkit_conformance.check import Failed
from srtkit_conformance.kits.server.process import Lost, ServerProcess

SHOWN = ("running", "waiting", "pages_used", "pages_cached", "aborted_total")
ANSWER_SECONDS = 120.0
"""A slow device on a busy machine, with more clients than rows; a hang is one all the same."""
REST_SECONDS = 10.0
POLL_SECONDS = 0.05
BROKEN = (OSError, http.client.HTTPException, ValueError)
"""No answer, half of one, or one that is not of its form."""


@dataclass(frozen=True)
class Client:
    """Asks one server. Raises `Lost` when it does not answer, `Failed` when it answers with an error."""

    server: ServerProcess

    def generate(self, ids: Sequence[int], tokens: int) -> tuple[list[int], int]:
        """The `tokens` likeliest next tokens, and how many of the prompt's were found in the cache."""
        result = self._json("POST", "/generate", _body(ids, tokens))
        return result["output_ids"], result["meta_info"]["cached_tokens"]

    def stream(self, ids: Sequence[int], tokens: int) -> list[int]:
        """The same as a stream."""
        with self.streaming(ids, tokens) as events:
            return [id_ for event in events for id_ in event["output_ids"]]

    @contextmanager
    def streaming(self, ids: Sequence[int], tokens: int, **more: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a stream; to leave the block early is to hang up."""
        with self._asked("POST", "/generate", _body(ids, tokens, stream=True, **more)) as answer:
            yield _events(answer)

    def abort(self, rid: str) -> int:
        """How many requests of that id were ended."""
        aborted: int = self._json("POST", "/abort_request", {"rid": rid})["aborted"]
        return aborted

    def flush_cache(self) -> None:
        """Forget all cached prefixes."""
        self._json("POST", "/flush_cache", {})

    def figures(self) -> dict[str, float]:
        """Those of /metrics without labels, by name without "srtkit_"."""
        with self._asked("GET", "/metrics", None) as answer:
            found = re.findall(r"^srtkit_(\w+) (\S+)$", answer.read().decode(), re.MULTILINE)
            return {name: float(value) for name, value in found}

    def wait_for(self, condition: Callable[[dict[str, float]], bool], what: str) -> dict[str, float]:
        """The figures, once they are so. Raises `Failed` with them if they do not come to it."""
        deadline = time.monotonic() + REST_SECONDS
        while not condition(figures := self.figures()):
            if time.monotonic() > deadline:
                shown = {name: int(figures[name]) for name in SHOWN}
                raise Failed(what, observed=shown, limit=f"within {REST_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
        return figures

    def _json(self, method: str, path: str, body: dict[str, Any]) -> Any:
        with self._asked(method, path, body) as answer:
            return json.loads(answer.read())

    @contextmanager
    def _asked(self, method: str, path: str, body: dict[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        """The answer, to be read inside the block; its connection is closed at the end, however that comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            if answer.status != 200:
                text = answer.read().decode(errors="replace")
                raise Failed(f"{path} answers with an error: {text[:500]}", observed=answer.status)
            yield answer
        except BROKEN as error:
            raise Lost(f"the server does not answer: {error!r}\n{self.server.last_lines()}") from error
        finally:
            connection.close()


def _body(ids: Sequence[int], tokens: int, **more: Any) -> dict[str, Any]:
    """A request for exactly so many tokens."""
    n = more.pop("n", 1)
    sampling = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "n": n}
    return {"input_ids": list(ids), "sampling_params": sampling, **more}


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        data = line.strip().removeprefix(b"data: ")
        if not line.startswith(b"data: ") or data == b"[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise Failed("a stream ends with an error", observed=event["error"])
        yield event
