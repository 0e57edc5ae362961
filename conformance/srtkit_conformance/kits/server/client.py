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

ANSWER_SECONDS = 20.0
REST_SECONDS = 10.0
POLL_SECONDS = 0.05


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
        connection, answer = self._ask("POST", "/generate", _body(ids, tokens, stream=True, **more))
        try:
            yield _events(answer)
        except OSError as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def abort(self, rid: str) -> int:
        """How many requests of that id were ended."""
        aborted: int = self._json("POST", "/abort_request", {"rid": rid})["aborted"]
        return aborted

    def flush_cache(self) -> None:
        """Forget all cached prefixes."""
        self._json("POST", "/flush_cache", {})

    def figures(self) -> dict[str, float]:
        """Those of /metrics without labels, by name without "srtkit_"."""
        _, answer = self._ask("GET", "/metrics", None)
        text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^srtkit_(\w+) (\S+)$", text, re.MULTILINE)}

    def wait_for(self, condition: Callable[[dict[str, float]], bool], what: str) -> None:
        """Until the figures are so. Raises `Failed` with them if they do not come to it."""
        deadline = time.monotonic() + REST_SECONDS
        while not condition(figures := self.figures()):
            if time.monotonic() > deadline:
                shown = {name: int(figures[name]) for name in ("running", "waiting", "pages_used", "pages_cached")}
                raise Failed(what, observed=shown, limit=f"within {REST_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def _json(self, method: str, path: str, body: dict[str, Any]) -> Any:
        connection, answer = self._ask(method, path, body)
        try:
            return json.loads(answer.read())
        except OSError as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._lost(error) from error
        if answer.status != 200:
            text = answer.read().decode(errors="replace")
            connection.close()
            raise Failed(f"{path} answers with an error: {text[:500]}", observed=answer.status)
        return connection, answer

    def _lost(self, error: Exception) -> Lost:
        return Lost(f"the server does not answer: {error!r}\n{self.server.last_lines()}")


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
