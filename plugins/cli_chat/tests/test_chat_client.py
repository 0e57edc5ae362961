"""The streaming client against a real loopback server."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from srtkit.spec.errors import ConfigError, EngineError, PeerGone
from srtkit_plugin_cli_chat.client import ChatClient, Delta, Sampling

if TYPE_CHECKING:
    from conftest import StubServer

ASK = [{"role": "user", "content": "hi"}]


def read(stub: StubServer, sampling: Sampling | None = None) -> list[Delta]:
    with ChatClient(stub.url) as client:
        return list(client.stream("tiny", ASK, sampling or Sampling()))


def test_models_in_the_servers_order(stub: StubServer) -> None:
    with ChatClient(stub.url + "/v1/") as client:
        assert client.models() == ["tiny", "other"]


def test_stream_gives_pieces_and_the_reason(stub: StubServer) -> None:
    assert read(stub) == [Delta("Hel"), Delta("lo, "), Delta("wörld"), Delta("", "stop")]


def test_only_what_the_user_set_is_sent(stub: StubServer) -> None:
    read(stub)
    read(stub, Sampling(temperature=0.0, max_tokens=7))
    assert stub.bodies[0] == {"model": "tiny", "messages": ASK, "stream": True}
    assert stub.bodies[1] == stub.bodies[0] | {"temperature": 0.0, "max_tokens": 7}


def test_refusal_carries_the_servers_message(stub: StubServer) -> None:
    stub.status, stub.refusal = 400, '{"error": {"message": "prompt is too long", "type": "invalid_request_error"}}'
    with pytest.raises(EngineError, match="answered 400: prompt is too long"):
        read(stub)


def test_refusal_that_is_no_json(stub: StubServer) -> None:
    stub.status, stub.refusal = 502, "<html>bad gateway</html>"
    with pytest.raises(EngineError, match="answered 502: <html>bad gateway"):
        read(stub)


def test_error_event_in_the_stream(stub: StubServer) -> None:
    stub.error_event = "a rank ended"
    with pytest.raises(EngineError, match="a rank ended"):
        read(stub)


def test_reply_that_breaks_off_is_an_error(stub: StubServer) -> None:
    stub.finish, stub.done = None, False
    with pytest.raises(PeerGone, match="in the middle of a reply"):
        read(stub)


def test_no_server_says_so_and_how_to_start_one() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with ChatClient(url) as client, pytest.raises(PeerGone) as caught:
            client.models()
    assert str(caught.value).startswith(f"server {url}: no server answers there")
    assert "srt serve" in caught.value.remedy


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:30000", "http://127.0.0.1:port"])
def test_url_of_another_form_is_a_mistake_in_the_call(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"), ChatClient(url) as client:
        client.models()


def test_closing_the_generator_hangs_up(stub: StubServer) -> None:
    stub.endless = True
    with ChatClient(stub.url) as client:
        deltas = client.stream("tiny", ASK, Sampling())
        next(deltas)
        deltas.close()
        assert stub.hung_up.wait(5)
