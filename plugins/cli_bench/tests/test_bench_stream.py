"""From bytes on a socket to a trace: event decoding, HTTP, and the meaning of completion events."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srtkit_plugin_cli_bench.completions import PATH, encode_body, read_trace
from srtkit_plugin_cli_bench.http_stream import Exchange, encode_post, exchange
from srtkit_plugin_cli_bench.sse import EventDecoder
from srtkit_plugin_cli_bench.target import Target, resolve
from srtkit_plugin_cli_bench.trace import Trace
from srtkit_plugin_cli_bench.workloads import Request

if TYPE_CHECKING:
    from conftest import StubServer

REQUEST = Request((5, 6, 7), 4)
STREAM = b': hello\r\nevent: x\r\ndata: {"a":1}\r\n\r\ndata:two\ndata: lines\n\n\n\ndata: [DONE]\n\ndata: cut off'
EVENTS = [b'{"a":1}', b"two\nlines", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_how_the_bytes_were_split(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    decoder = EventDecoder()
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS


def ask(target: Target, timeout: float = 20.0) -> Trace:
    request = encode_post(target, PATH, encode_body("tiny", REQUEST))
    return read_trace(asyncio.run(exchange(target, request, timeout)))


def test_a_request_as_the_server_gets_it_and_its_trace(stub: StubServer) -> None:
    stub.cached = 2
    before = time.perf_counter()
    trace = ask(resolve(stub.url, allow_remote=False))
    assert trace.error is None
    assert (trace.prompt_tokens, trace.output_tokens, trace.cached_tokens) == (3, 4, 2)
    assert len(trace.arrivals) == 4  # the closing event and usage carry no output
    assert [before, trace.sent, *trace.arrivals] == sorted([before, trace.sent, *trace.arrivals])
    (body,) = stub.bodies
    assert body == {
        "model": "tiny",
        "prompt": [5, 6, 7],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_tokens_are_counted_by_usage_not_by_events(stub: StubServer) -> None:
    stub.merge = 3
    trace = ask(resolve(stub.url, allow_remote=False))
    assert (len(trace.arrivals), trace.output_tokens) == (2, 4)


def test_a_refusal_is_recorded_with_its_reason(stub: StubServer) -> None:
    stub.status = 503
    assert ask(resolve(stub.url, allow_remote=False)).error == 'status 503: {"error": {"message": "queue full"}}'


def test_an_answer_that_breaks_off_is_an_error(stub: StubServer) -> None:
    stub.hang_up_after = 2
    assert "connection lost" in str(ask(resolve(stub.url, allow_remote=False)).error)


def test_an_answer_without_usage_is_an_error(stub: StubServer) -> None:
    stub.usage = False
    assert "usage has no 'prompt_tokens'" in str(ask(resolve(stub.url, allow_remote=False)).error)


def test_a_silent_server_runs_into_the_timeout(stub: StubServer) -> None:
    stub.silent = threading.Event()
    assert ask(resolve(stub.url, allow_remote=False), timeout=0.1).error == "no end within 0.1 s"


def test_no_server_is_an_error_of_the_request() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = Target("http", "127.0.0.1", unused.getsockname()[1], "127.0.0.1")
        assert "ConnectionRefusedError" in str(ask(target).error)


def test_something_that_is_not_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        trace = ask(Target("http", "127.0.0.1", listener.getsockname()[1], "127.0.0.1"))
        thread.join()
    assert "not HTTP" in str(trace.error)


def events(*payloads: dict[str, Any]) -> Exchange:
    stream = [(float(i), json.dumps(p).encode()) for i, p in enumerate(payloads, start=1)]
    return Exchange(0.5, 200, [*stream, (9.0, b"[DONE]")])


USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}


def test_an_empty_text_counts_until_it_only_closes_the_stream() -> None:
    held_back = {"choices": [{"text": ""}]}  # half a character: a token was made, its text comes later
    piece = {"choices": [{"text": "é"}]}
    closing = {"choices": [{"text": "", "finish_reason": "length"}]}
    assert read_trace(events(held_back, piece, closing, USAGE)).arrivals == [1.0, 2.0]
    assert read_trace(events(closing, USAGE)).arrivals == [1.0]  # one token whose text is empty


def test_an_error_event_fails_the_request() -> None:
    assert "rank" in str(read_trace(events({"choices": [{"text": "x"}]}, {"error": {"message": "a rank ended"}})).error)


def test_a_stream_without_output_fails() -> None:
    assert read_trace(events(USAGE)).error == "no output"


def test_usage_without_details_leaves_the_cache_unknown() -> None:
    assert read_trace(events({"choices": [{"text": "x"}]}, USAGE)).cached_tokens is None


@pytest.mark.parametrize("payload", [b"{", b"\xff"])
def test_an_event_that_is_not_json_fails_the_request(payload: bytes) -> None:
    assert "not JSON" in str(read_trace(Exchange(0.0, 200, [(1.0, payload)])).error)
