"""Clients that hang up or read slowly, full queues, aborts, a dying engine, keys."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from srtkit.spec.errors import PeerGone
from tests.serve.engine_double import STORY
from tests.serve.running import Running, serving, wait_until
from tests.serve.test_http import error, events

BODY = {"prompt": "Tell", "max_tokens": 300, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def running() -> Iterator[Running]:
    """A server of the test's own."""
    with serving() as running:
        yield running


def send(running: Running, body: dict, path: str = "/v1/completions") -> socket.socket:
    """Send a request and leave the answer unread."""
    connection = socket.create_connection(("127.0.0.1", running.target.port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def url(running: Running, path: str) -> str:
    return running.target.base_url + path


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waiting", "running"])
@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_a_client_that_hangs_up_frees_its_rows(stream: bool, phase: str, path: str) -> None:
    with serving(pace=0.002, max_rows=2) as running:
        engine = running.engine
        if phase == "waiting":
            engine.go.clear()
        body = {**BODY, "n": 3} if path != "/generate" else {"text": "Tell", "sampling_params": {**BODY, "n": 3}}
        body.get("sampling_params", {}).pop("prompt", None)
        connection = send(running, {**body, "stream": stream}, path)
        wait_until(lambda: engine.n_open == 3 and (phase == "waiting" or len(engine.rows) == 2))
        connection.close()
        wait_until(lambda: engine.n_open == 0)
        assert [one.reason for one in engine.aborted] == ["abort"] * 3
        engine.go.set()
        wait_until(lambda: not running.service._open)
        assert running.service._waiting == 0
        metrics = httpx.get(url(running, "/metrics")).text
        assert 'srtkit_requests_total{status="499"} 1.0' in metrics


def test_many_clients_of_which_half_hang_up() -> None:
    with serving(pace=0.001) as running:
        connections = [send(running, {**BODY, "max_tokens": 80, "stream": True}) for _ in range(100)]
        wait_until(lambda: len(running.engine.submitted) == 100)
        for connection in connections[::2]:
            connection.close()
        for connection in connections[1::2]:
            assert b"[DONE]" in read_all(connection)
        wait_until(lambda: running.engine.n_open == 0 and not running.service._open)
        assert running.service._waiting == 0


def read_all(connection: socket.socket) -> bytes:
    """Until the chunked answer's end."""
    data = b""
    with connection:
        connection.settimeout(30)
        while not data.endswith(b"0\r\n\r\n"):
            part = connection.recv(1 << 16)
            assert part
            data += part
    return data


def test_a_slow_client_gets_merged_events_and_all_of_the_text(running: Running) -> None:
    # Its receive buffer and the server's send buffer must fill up, so the events are made fat.
    listener_free = {**BODY, "max_tokens": 390, "logprobs": 20, "n": 64, "stream": True, "stop": "never"}
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", running.target.port))
    data = json.dumps(listener_free).encode()
    connection.sendall(
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    )
    wait_until(lambda: len(running.engine.submitted) == 64 and running.engine.n_open == 0, seconds=60)
    others = httpx.post(url(running, "/v1/completions"), json={**BODY, "max_tokens": 5})  # not held up
    assert others.json()["choices"][0]["text"] == STORY[:5]
    answer = read_all(connection)
    chunks = [json.loads(line[6:]) for line in unchunked(answer).split(b"\n\n") if line.startswith(b"data: {")]
    texts = [""] * 64
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert len(chunks) < 64 * 390
    assert ends.count("length") == 64
    assert len(set(texts)) == 1
    assert texts[0].startswith(STORY + STORY)


def unchunked(answer: bytes) -> bytes:
    """The body of a chunked answer."""
    rest, body = answer.partition(b"\r\n\r\n")[2], b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            return body
        body, rest = body + rest[:n], rest[n + 2 :]


def test_full_queue() -> None:
    with serving(max_waiting=2) as running:
        running.engine.go.clear()
        held = [send(running, BODY) for _ in range(2)]
        wait_until(lambda: running.service._waiting == 2)
        refused = httpx.post(url(running, "/v1/completions"), json={**BODY, "stream": True})
        assert error(refused, 503)["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) > 0
        assert httpx.get(url(running, "/health")).status_code == 200
        for connection in held:
            connection.close()
        wait_until(lambda: running.engine.n_open == 0)
        running.engine.go.set()
        wait_until(lambda: running.service._waiting == 0)
        assert httpx.post(url(running, "/v1/completions"), json={**BODY, "max_tokens": 1}).status_code == 200


def test_a_request_is_opened_whole_or_not_at_all() -> None:
    with serving(max_waiting=2) as running:
        running.engine.go.clear()
        with send(running, BODY):
            wait_until(lambda: running.service._waiting == 1)
            error(httpx.post(url(running, "/v1/completions"), json={**BODY, "n": 2}), 503)
            assert running.service._waiting == 1
        wait_until(lambda: running.engine.n_open == 0)
        assert len(running.engine.submitted) == 1


def test_more_sequences_than_ever_may_wait_are_the_clients_mistake() -> None:
    with serving(max_waiting=2) as running:
        found = error(httpx.post(url(running, "/v1/completions"), json={**BODY, "n": 3}), 400)
        assert "3 sequences" in found["message"] and "(2)" in found["message"]
        assert not running.engine.submitted


@pytest.mark.parametrize("stream", [False, True])
def test_abort_request(stream: bool) -> None:
    with serving(pace=0.005) as running:
        answers: list[httpx.Response] = []
        body = {**BODY, "rid": "mine", "stream": stream, "n": 2}
        thread = threading.Thread(target=lambda: answers.append(httpx.post(url(running, "/v1/completions"), json=body)))
        thread.start()
        wait_until(lambda: len(running.engine.rows) == 2)
        again = httpx.post(url(running, "/v1/completions"), json=body)
        assert error(again, 400)["param"] == "rid"
        assert httpx.post(url(running, "/abort_request"), json={"rid": "mine"}).json() == {"aborted": 1}
        thread.join(10)
        choices = [chunk["choices"][0] for chunk in events(answers[0])] if stream else answers[0].json()["choices"]
        ends = {choice["index"]: choice["finish_reason"] for choice in choices}
        assert ends == {0: "abort", 1: "abort"}
        wait_until(lambda: running.engine.n_open == 0)
        assert 'finish_reason="abort"} 2.0' in httpx.get(url(running, "/metrics")).text


def test_abort_all(running: Running) -> None:
    running.engine.go.clear()
    connections = [send(running, BODY) for _ in range(3)]
    wait_until(lambda: running.engine.n_open == 3)
    assert httpx.post(url(running, "/abort_request"), json={"abort_all": True}).json() == {"aborted": 3}
    for connection in connections:
        answer = b""
        while b'"finish_reason":"abort"' not in answer:
            part = connection.recv(1 << 16)
            assert part, "the server closed the connection"
            answer += part
        connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_dying_engine_ends_all_with_its_error(running: Running, stream: bool) -> None:
    running.engine.go.clear()
    answers: list[httpx.Response] = []
    body = {**BODY, "stream": stream}
    thread = threading.Thread(target=lambda: answers.append(httpx.post(url(running, "/v1/completions"), json=body)))
    thread.start()
    wait_until(lambda: running.engine.n_open == 1)
    running.engine.fail()
    thread.join(10)
    found = events(answers[0])[0]["error"] if stream else error(answers[0], 503)
    health = httpx.get(url(running, "/health"))
    assert health.status_code == 503
    told = [found["message"], health.json()["error"]]
    told.append(error(httpx.post(url(running, "/v1/completions"), json=BODY), 503)["message"])
    told.append(error(httpx.get(url(running, "/health_generate")), 503)["message"])
    told.append(error(httpx.post(url(running, "/flush_cache")), 503)["message"])
    for message in told:  # why is the operator's: it names processes, files and what to change there
        assert message.startswith("the engine has stopped")
        assert "attention:toy" not in message and "mend it" not in message


def test_a_closed_channel_fails_the_service(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(timeout: float | None) -> list[list[bytes]]:
        raise PeerGone("transport:toy", "the other end closed")

    monkeypatch.setattr(running.engine.deltas, "drain", closed)
    wait_until(lambda: httpx.get(url(running, "/health")).status_code == 503)


def test_a_damaged_message_fails_the_service(running: Running) -> None:
    running.engine.deltas.send([b"\x00nonsense"])
    wait_until(lambda: httpx.get(url(running, "/health")).status_code == 503)


def test_control_waits_no_longer_than_it_says(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srtkit.serve.service.ENGINE_SECONDS", 0.05)
    running.engine.stop()
    assert "within 0.05 s" in error(httpx.post(url(running, "/flush_cache")), 503)["message"]


def test_hung_engine_fails_the_probe(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srtkit.serve.service.ENGINE_SECONDS", 0.05)
    running.engine.go.clear()
    assert "within 0.05 s" in error(httpx.get(url(running, "/health_generate")), 503)["message"]
    wait_until(lambda: running.engine.n_open == 0)


def test_api_key() -> None:
    with serving(api_key="sécret") as running:
        assert httpx.get(url(running, "/health")).status_code == 200
        for key in ("Bearer wrong", "Basic sécret", "Bearer", ""):
            headers = [(b"authorization", key.encode())]
            assert error(httpx.get(url(running, "/v1/models"), headers=headers), 401)["type"] == "authentication_error"
        assert httpx.get(url(running, "/metrics")).status_code == 401
        answer = httpx.get(url(running, "/v1/models"), headers=[(b"authorization", "Bearer sécret".encode())])
        assert answer.status_code == 200


def test_degraded() -> None:
    with serving(degraded=("attention: fa3 → triton",)) as running:
        health = httpx.get(url(running, "/health"))
        assert health.status_code == 200
        assert health.json() == {"status": "degraded", "degraded": ["attention: fa3 → triton"]}
        assert "srtkit_degraded 1.0" in httpx.get(url(running, "/metrics")).text


def test_strict_fields() -> None:
    with serving(strict_fields=True) as running:
        answer = httpx.post(url(running, "/v1/completions"), json={**BODY, "temprature": 0})
        assert error(answer, 400)["param"] == "temprature"
        answer = httpx.post(url(running, "/generate"), json={"text": "a", "sampling_params": {"hot": 1}})
        assert error(answer, 400)["param"] == "sampling_params.hot"
        assert httpx.post(url(running, "/v1/completions"), json={**BODY, "user": "me"}).status_code == 200


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "a", "contents": "b"}, "messages[0].contents"),
        ({"content": [{"type": "text", "text": "a", "txet": "b"}]}, "messages[0].content[0].txet"),
    ],
)
def test_strict_fields_reach_into_messages(message: dict, param: str) -> None:
    with serving(strict_fields=True) as running:
        chat = url(running, "/v1/chat/completions")
        found = error(httpx.post(chat, json={"messages": [{"role": "user", **message}], "max_tokens": 1}), 400)
        assert found["param"] == param
        assert "did you mean" in found["message"]
        fine = {"role": "user", "content": "a", "name": "me"}
        assert httpx.post(chat, json={"messages": [fine], "max_tokens": 1}).status_code == 200


def test_unknown_fields_warn_once(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "srtkit.serve"):
        for _ in range(2):
            answer = httpx.post(url(running, "/v1/completions"), json={**BODY, "temprature": 0, "max_tokens": 1})
            assert answer.status_code == 200
    assert sum("temprature" in record.getMessage() for record in caplog.records) == 1


def test_a_bug_is_a_500_in_the_same_shape(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.service, "info", None)
    assert error(httpx.get(url(running, "/server_info")), 500)["code"] == "internal_error"


def test_upload_that_breaks_off(running: Running) -> None:
    connection = socket.create_connection(("127.0.0.1", running.target.port))
    connection.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"prompt')
    connection.close()
    assert httpx.get(url(running, "/health")).status_code == 200
    assert not running.engine.submitted
