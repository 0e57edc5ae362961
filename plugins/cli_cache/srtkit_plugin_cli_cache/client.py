"""Asks a server for /cache. Knows HTTP, no terminal."""

from __future__ import annotations

from typing import Any

import httpx

from srtkit.spec.errors import ConfigError, EngineError, PeerGone, SrtError, TransportError

SECONDS = 40.0
"""The engine answers between two steps, and the server itself gives it up after 30 seconds."""
ROUTE = '[routes] use = ["admin", "cache"] in its file switches it on'


def ask(url: str, limit: int, api_key: str | None) -> dict[str, Any]:
    """What the server answers.

    Raises `PeerGone` when nothing answers there, `ConfigError` for a wrong key or address and for a server without
    the route, `EngineError` when it refuses otherwise.
    """
    part = f"server {url}"
    headers = {} if api_key is None else {b"Authorization": f"Bearer {api_key}".encode()}
    try:
        # trust_env off: a proxy of the environment must not stand between us and loopback.
        with httpx.Client(timeout=SECONDS, headers=headers, trust_env=False) as http:
            response = http.get(f"{url.rstrip('/')}/cache", params={"limit": limit})
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigError(part, str(error), "give it as http://HOST:PORT") from error
    except httpx.ConnectError as error:
        raise PeerGone(part, "no server answers there", "start one with `srt serve`, or give its URL") from error
    except httpx.HTTPError as error:
        raise TransportError(part, f"{type(error).__name__}: {error}", "see the server's log") from error
    if response.status_code != httpx.codes.OK:
        raise _refusal(part, response, api_key is not None)
    try:
        answer: dict[str, Any] = response.json()
        answer["pages"], answer["prefixes"], answer["tiers"]
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(part, "its /cache is not that of srtkit", "check the URL") from error
    return answer


def _refusal(part: str, response: httpx.Response, has_key: bool) -> SrtError:
    match response.status_code:
        case 401:
            cause = "does not take this API key" if has_key else "wants an API key"
            return ConfigError(part, cause, "give the server's own: --api-key KEY, or --api-key @FILE")
        case 404:
            return ConfigError(part, "has no route /cache", ROUTE)
    try:
        cause = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        cause = response.text.strip()[:300] or "no reason given"
    return EngineError(part, f"answered {response.status_code}: {cause}")
