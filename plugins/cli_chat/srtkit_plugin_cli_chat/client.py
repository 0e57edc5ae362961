"""A streaming client of `/v1/chat/completions`. Knows HTTP and server-sent events, no terminal."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Self

import httpx

from srtkit.spec.errors import ConfigError, EngineError, PeerGone, SrtError, TransportError, TransportTimeout

# Connecting to a live server is quick; a first token may wait behind a long queue.
TIMEOUT = httpx.Timeout(connect=5.0, read=600.0, write=30.0, pool=5.0)


@dataclass(frozen=True)
class Sampling:
    """What the user fixed; None leaves the choice to the server."""

    temperature: float | None = None
    max_tokens: int | None = None

    def fields(self) -> dict[str, Any]:
        """The request fields of the options that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Delta:
    """One piece of a reply: its text, and why generation ended if this is the last piece."""

    text: str
    finish_reason: str | None = None


class ChatClient:
    """Talks to one server; `close()` it, or use it in a `with` statement.

    Every failure is an `SrtError` that names the server: `PeerGone` when nothing answers there,
    `ConfigError` when the API key is not the server's, `EngineError` when it refuses otherwise or fails.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {} if api_key is None else {b"Authorization": f"Bearer {api_key}".encode()}
        self._has_key = api_key is not None
        self.url = url.rstrip("/").removesuffix("/v1")
        try:
            # trust_env off: a proxy of the environment must not stand between us and loopback.
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, trust_env=False)
        except httpx.InvalidURL as error:
            raise ConfigError(f"--url {url}", str(error), "give it as http://HOST:PORT") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def models(self) -> list[str]:
        """Served names, in the server's order."""
        try:
            response = self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise self._transport_error(error) from error
        if response.status_code != httpx.codes.OK:
            raise self._refusal(response.status_code, response.text)
        try:
            return [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            cause = "its /v1/models is not the list of an OpenAI-compatible server"
            raise EngineError(self._part, cause, "check --url") from error

    def stream(self, model: str, messages: list[dict[str, str]], sampling: Sampling) -> Generator[Delta, None, None]:
        """Yields the reply piece by piece; closing the generator ends the generation on the server."""
        body = {"model": model, "messages": messages, "stream": True, **sampling.fields()}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._refusal(response.status_code, response.read().decode("utf-8", "replace"))
                yield from self._deltas(response.iter_lines())
        except httpx.HTTPError as error:
            raise self._transport_error(error) from error

    def _deltas(self, lines: Iterator[str]) -> Iterator[Delta]:
        for line in lines:
            if not line.startswith("data:"):
                continue
            data = line[5:].strip()
            if data == "[DONE]":
                return
            try:
                event = json.loads(data)
            except ValueError as error:
                raise EngineError(self._part, f"sent an event that is not JSON: {data[:80]!r}") from error
            if event.get("error"):
                raise EngineError(self._part, _error_message(data))
            for choice in event.get("choices") or ():
                text = choice.get("delta", {}).get("content") or ""
                reason = choice.get("finish_reason")
                if text or reason:
                    yield Delta(text, reason)
        raise PeerGone(self._part, "closed the connection in the middle of a reply", "see the server's log")

    @property
    def _part(self) -> str:
        return f"server {self.url}"

    def _refusal(self, status: int, text: str) -> SrtError:
        if status == httpx.codes.UNAUTHORIZED:
            cause = "does not take this API key" if self._has_key else "wants an API key"
            return ConfigError(self._part, cause, "give the server's own: --api-key KEY, or --api-key @FILE")
        return EngineError(self._part, f"answered {status}: {_error_message(text)}")

    def _transport_error(self, error: httpx.HTTPError) -> SrtError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return PeerGone(self._part, "no server answers there", "start one with `srt serve`, or give its --url")
        if isinstance(error, httpx.TimeoutException):
            return TransportTimeout(self._part, "nothing arrived in time", "see the server's log")
        if isinstance(error, httpx.UnsupportedProtocol):
            return ConfigError(f"--url {self.url}", str(error), "give it as http://HOST:PORT")
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
            return PeerGone(self._part, f"closed the connection: {error}", "see the server's log")
        return TransportError(self._part, f"{type(error).__name__}: {error}", "see the server's log")


def _error_message(text: str) -> str:
    """The message of an OpenAI error object, else the text itself, shortened."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text.strip()[:300] or "no reason given"
