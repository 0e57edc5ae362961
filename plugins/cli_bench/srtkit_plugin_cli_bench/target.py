"""The address under test: parsed, resolved, refused unless it is loopback; plain calls outside the measurement."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from srtkit.spec.errors import ConfigError, EngineError, PeerGone


@dataclass(frozen=True)
class Target:
    """One server: the resolved address to connect to, the host name it is asked by, and the key it wants."""

    scheme: str
    host: str
    port: int
    address: str
    path: str = ""
    api_key: str | None = field(default=None, repr=False)

    @property
    def bearer(self) -> dict[str, bytes]:
        """The header that carries the key, if there is one."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}".encode()}

    @property
    def url(self) -> str:
        """As the user would write it, without `/v1`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def part(self) -> str:
        """How errors name it."""
        return f"server {self.url}"


def resolve(url: str, allow_remote: bool, api_key: str | None = None) -> Target:
    """Raises ConfigError for a URL of another form, and for any address but loopback unless allowed.

    Load is sent to the very address that was checked, so a name cannot lead elsewhere later.
    """
    parts = urllib.parse.urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url {url}", str(error), "give it as http://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url {url}", "is not an HTTP address", "give it as http://HOST:PORT")
    port = port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--url {url}", f"cannot resolve {parts.hostname}: {error.strerror}") from error
    addresses = [str(info[4][0]) for info in found]
    remote = [a for a in addresses if not ipaddress.ip_address(a.partition("%")[0]).is_loopback]
    if remote and not allow_remote:
        cause = (
            f"{remote[0]} is not a loopback address, and a load generator is an attack on a machine that is not yours"
        )
        raise ConfigError(f"--url {url}", cause, "measure on the server's machine, or say --allow-remote")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.scheme, parts.hostname, port, addresses[0], path, api_key)


def call(target: Target, method: str, path: str, body: Any = None, timeout: float = 10.0) -> tuple[int, Any]:
    """One plain request outside the measurement; returns the status and the decoded JSON (None if it is none).

    Raises PeerGone when no server answers there, ConfigError when the API key is not the server's.
    """
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.host if target.scheme == "https" else target.address, target.port, timeout=timeout)
    data = None if body is None else json.dumps(body)
    headers = {"Content-Type": b"application/json"} if data is not None else {}
    try:
        connection.request(method, target.path + path, data, headers | target.bearer)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        cause = f"no server answers there ({type(error).__name__}: {error})"
        raise PeerGone(target.part, cause, "start one with `srt serve`, or use --config FILE") from error
    finally:
        connection.close()
    if response.status == http.client.UNAUTHORIZED:
        cause = "wants an API key" if target.api_key is None else "does not take this API key"
        raise ConfigError(target.part, cause, "give the server's own: --api-key KEY, or --api-key @FILE")
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, None


def first_model(target: Target) -> str:
    """The served name that the server lists first."""
    status, answer = call(target, "GET", "/v1/models")
    try:
        return str(answer["data"][0]["id"])
    except (TypeError, KeyError, IndexError) as error:
        raise EngineError(target.part, f"/v1/models answered {status} and names no model", "give --model") from error
