"""kill -9 of a whole server while it writes pages to files, again and again: the next one serves the same tokens.

Page files are written to the end, named and visible, or not there at all.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from tests.live import LiveServer, live_server
from tests.live_server import tiny
from tests.live_server.clients import wait_until

PAGE, TOKENS, ANSWER, CONTEXT = 128, 640, 8, 768
KILLS, FOLDERS = 3, 256


def prompt_of(number: int) -> str:
    return bytes(random.Random(number).choices(range(33, 126), k=TOKENS)).decode()


PROMPTS = [prompt_of(number) for number in range(6)]


@pytest.mark.full
def test_the_next_server_serves_the_same_tokens(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with server(model, tmp_path, "chunk") as one:
        expected = [complete(one, prompt)[0] for prompt in PROMPTS]
    for _ in range(KILLS):
        with server(model, tmp_path, "hiradix", storage={"use": "files", "path": str(store)}) as one, asking(one):
            (rank,) = one.children
            wait_until(lambda: len(list(store.rglob("*"))) > FOLDERS + 30, 60)
            stop_while_it_writes(rank, store)
            for pid in (rank, one.pid):
                os.kill(pid, signal.SIGKILL)
            one.process.wait(10)
            wait_until(partial(has_ended, rank))  # nobody's child by now; it frees its memory first
    assert list(store.rglob("*.unfinished")), "no write was cut short"
    with server(model, tmp_path, "hiradix", storage={"use": "files", "path": str(store)}) as one:
        for _ in range(2):
            answers = [complete(one, prompt) for prompt in PROMPTS]
            assert [text for text, _ in answers] == expected
            assert sum(reused for _, reused in answers) >= TOKENS, "nothing came back"


@contextmanager
def server(model: Path, folder: Path, cache: str, **options: object) -> Iterator[LiveServer]:
    """One whose pool holds one sequence, and its host memory four: what comes back afterwards was stored."""
    file = folder / f"{cache}.toml"
    tables = {"prefix_cache": f'use = "{cache}"', "memory": f"page_size = {PAGE}", "model": f"max_context = {CONTEXT}"}
    tiny.write_config(file, model, tables)
    token_bytes = tiny.LAYERS * 2 * tiny.HIDDEN // tiny.HEADS * tiny.KV_HEADS * 4
    sets = {"memory.kv_gib": str((CONTEXT + 2 * PAGE) * token_bytes / 2**30)}
    if options:
        more = {"host_gib": 4 * CONTEXT * token_bytes / 2**30, "write_policy": "write-back", "fetch_policy": "wait"}
        for name, value in {**more, "fetch_tokens": PAGE, **options}.items():
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            sets[f"prefix_cache.options.hiradix.{name}"] = text
    with live_server(file, sets) as one:
        yield one


@contextmanager
def asking(one: LiveServer) -> Iterator[None]:
    """Somebody asks for the prompts and new ones, until the server answers no more or the block ends.

    A server whose rank was killed before it may still say so: with an error, or in the middle of an answer.
    """
    over = threading.Event()

    def ask() -> None:
        with suppress(httpx.TransportError, httpx.HTTPStatusError):
            for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                complete(one, PROMPTS[number % len(PROMPTS)])
                complete(one, prompt_of(1000 * one.pid + number))  # what is stored already is not written again

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def stop_while_it_writes(rank: int, store: Path) -> None:
    """SIGSTOP to the process when it has a file of the store half written."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        os.kill(rank, signal.SIGSTOP)
        if any(store.rglob("*.unfinished")):
            return
        os.kill(rank, signal.SIGCONT)
        time.sleep(random.Random(time.monotonic()).uniform(0.001, 0.02))
    raise AssertionError("it was never seen writing")


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def complete(one: LiveServer, prompt: str) -> tuple[str, int]:
    """A greedy answer, and how many tokens of the prompt were reused."""
    body = {"prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{one.base_url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]
