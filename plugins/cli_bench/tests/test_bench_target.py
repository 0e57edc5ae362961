"""Load goes to loopback addresses only, unless the user says otherwise."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from srtkit.spec.errors import ConfigError, EngineError, PeerGone
from srtkit_plugin_cli_bench.target import Target, call, first_model, resolve

if TYPE_CHECKING:
    from conftest import StubServer


@pytest.mark.parametrize(
    ("url", "address", "port", "shown"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "http://127.0.0.1:8000"),
        ("http://127.0.0.2:8000/v1/", "127.0.0.2", 8000, "http://127.0.0.2:8000"),
        ("http://[::1]:8000/base/v1", "::1", 8000, "http://[::1]:8000/base"),
        ("http://127.0.0.1", "127.0.0.1", 80, "http://127.0.0.1:80"),
    ],
)
def test_loopback(url: str, address: str, port: int, shown: str) -> None:
    target = resolve(url, allow_remote=False)
    assert (target.address, target.port, target.url) == (address, port, shown)


def test_localhost_is_loopback() -> None:
    assert resolve("http://localhost:8000", allow_remote=False).address in ("127.0.0.1", "::1")


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::1]", "0.0.0.0"])
def test_anything_else_is_refused_unless_allowed(host: str) -> None:
    with pytest.raises(ConfigError, match="not a loopback address") as caught:
        resolve(f"http://{host}:8000", allow_remote=False)
    assert "--allow-remote" in caught.value.remedy
    assert resolve(f"http://{host}:8000", allow_remote=True).port == 8000


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port"])
def test_urls_of_another_form(url: str) -> None:
    with pytest.raises(ConfigError):
        resolve(url, allow_remote=True)


def test_plain_calls(stub: StubServer) -> None:
    target = resolve(stub.url, allow_remote=False)
    assert first_model(target) == "tiny"
    assert call(target, "GET", "/nothing") == (404, None)


def test_no_server() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(PeerGone, match="no server answers"):
            first_model(Target("http", "127.0.0.1", unused.getsockname()[1], "127.0.0.1"))


def test_a_server_that_lists_no_model(stub: StubServer) -> None:
    target = resolve(stub.url + "/elsewhere", allow_remote=False)
    with pytest.raises(EngineError, match="answered 404"):
        first_model(target)
