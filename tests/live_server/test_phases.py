"""Aborts, hang-ups and crowds in every phase, with 0, 1 and 2 steps in flight: nothing stays, nothing gets mixed up.

While the file `brake` exists a step takes long enough for a test to act within a phase.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.live import LiveServer
from tests.live_server import tiny
from tests.live_server.clients import complete, events, metrics, read_rest, send, wait_for_rest, wait_until
from tests.live_server.conftest import Start

ROWS = 8
QUEUE = 210
CLIENTS = 200
LONG = tiny.CONTEXT - 100
STEADY = "A page is reused after its fence"


@dataclass(frozen=True)
class Crowded:
    """A server with few rows, small chunks and a bounded queue, and the file that slows it down."""

    server: LiveServer
    brake: Path

    @contextmanager
    def slow(self) -> Iterator[LiveServer]:
        """The server, slow within the block."""
        self.brake.touch()
        try:
            yield self.server
        finally:
            self.brake.unlink()


@pytest.fixture(scope="module", params=[0, 1, 2], ids=lambda depth: f"depth{depth}")
def crowded(
    request: pytest.FixtureRequest, start: Start, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crowded]:
    """One for each number of steps in flight."""
    brake = tmp_path_factory.mktemp("phases") / "brake"
    sets = {
        "attention.use": "wrapped",
        "attention.options.brake": str(brake),
        "scheduler.depth": str(request.param),
        "scheduler.max_running": str(ROWS),
        "scheduler.chunk_tokens": "32",
        "scheduler.max_waiting": str(QUEUE),
    }
    with start(sets) as server:
        yield Crowded(server, brake)


@pytest.fixture(scope="module")
def steady(server: LiveServer) -> str:
    """What the plain server says, alone and undisturbed."""
    return complete(server, STEADY, 40)


@pytest.mark.parametrize("how", ["hang up", "abort"])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
def test_a_request_that_is_given_up_frees_what_it_has(crowded: Crowded, steady: str, phase: str, how: str) -> None:
    with crowded.slow() as server:
        before = metrics(server)
        expected = before["aborted_total"] + 1
        if phase == "waiting":
            occupants = send(server, "Occupants", LONG, n=ROWS)
            wait_until(lambda: metrics(server)["running"] == ROWS)
        prompt = f"{phase} {how} " * (100 if phase == "prefill" else 1)  # 100: some fifty chunks
        given_up = send(server, prompt, LONG if phase == "decode" else 5, rid="given up")
        if phase == "decode":
            while b"data: " not in given_up.recv(1 << 16):
                pass
        else:
            wait_until(lambda: metrics(server)["waiting" if phase == "waiting" else "running"] == 1)
        if how == "hang up":
            given_up.close()
        else:
            assert httpx.post(f"{server.base_url}/abort_request", json={"rid": "given up"}).json() == {"aborted": 1}
            assert json.loads(events(read_rest(given_up))[-2])["choices"][0]["finish_reason"] == "abort"
        if phase == "waiting":
            wait_until(lambda: metrics(server)["waiting"] == 0)
            assert metrics(server)["running"] == ROWS
            occupants.close()
            expected += ROWS
        wait_for_rest(server, aborted_total=expected)
        after = metrics(server)
    assert after["aborted_total"] == expected
    made = after["output_tokens_total"] - before["output_tokens_total"]
    assert made == 0 if phase == "prefill" else made < LONG
    assert complete(server, STEADY, 40) == steady


def test_a_full_queue_refuses_and_recovers(crowded: Crowded, steady: str) -> None:
    with crowded.slow() as server:
        before = metrics(server)
        running = send(server, "Running", LONG, n=ROWS)
        wait_until(lambda: metrics(server)["running"] == ROWS)
        waiting = [send(server, f"Waiting {i}", 5, n=QUEUE // 2) for i in range(2)]
        wait_until(lambda: metrics(server)["waiting"] == QUEUE)
        refused = httpx.post(f"{server.base_url}/v1/completions", json={"prompt": "One more"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) > 0
        assert httpx.get(f"{server.base_url}/health").status_code == 200
        assert httpx.post(f"{server.base_url}/abort_request", json={"abort_all": True}).json() == {"aborted": 3}
        for one in (running, *waiting):
            assert events(read_rest(one))[-1] == "[DONE]"
        wait_for_rest(server, aborted_total=before["aborted_total"] + ROWS + QUEUE)
    assert complete(server, STEADY, 40) == steady


def test_two_hundred_clients_of_which_half_hang_up(crowded: Crowded, server: LiveServer, steady: str) -> None:
    prompts = [f"{name}, begin with " * length for length, name in enumerate(("You", "He", "She", "They"), start=1)]
    expected = [complete(server, prompt, 20) for prompt in prompts]
    chance = random.Random(7)
    plans = [(i % len(prompts), chance.randrange(8) if i % 2 else None) for i in range(CLIENTS)]
    target = crowded.server

    async def crowd() -> list[str | None]:
        return await asyncio.gather(*(_client(target, prompts[which], leave) for which, leave in plans))

    before = metrics(target)
    texts = asyncio.run(crowd())
    wait_for_rest(target, output_tokens_total=before["output_tokens_total"] + CLIENTS // 2 * 20)
    for (which, leave), text in zip(plans, texts, strict=True):
        assert text == (expected[which] if leave is None else None)
    hung_up = metrics(target)["aborted_total"] - before["aborted_total"]
    assert 0 < hung_up <= CLIENTS // 2
    assert complete(target, STEADY, 40) == steady


async def _client(server: LiveServer, prompt: str, leave: int | None) -> str | None:
    """Stream a completion; its text. `leave`: hang up after so many events."""
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    port = int(server.base_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    text, seen = "", 0
    while seen != leave:
        line = (await asyncio.wait_for(reader.readline(), 60)).strip()
        if line == b"data: [DONE]":
            break
        if line.startswith(b"data: "):
            text += json.loads(line[6:])["choices"][0]["text"]
            seen += 1
    writer.close()
    return text if leave is None else None
