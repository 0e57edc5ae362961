"""A long stay at one server: many short requests, some of them given up; what it holds must not grow with them.

Knows routes, figures and the processes of a session; no plugin. Memory is what the kernel says that its processes
have written, together; where it says nothing only pages of the cache are judged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from srtkit_conformance.check import Failed, Informational, Outcome, Refused, expect
from srtkit_conformance.kits.server.client import Client
from srtkit_conformance.kits.server.combinations import Stage, begun, staged
from srtkit_conformance.kits.server.model import TOKENS, VOCABULARY, ServedModel, new
from srtkit_conformance.kits.server.process import Lost, ServerProcess, session_of
from srtkit_conformance.kits.server.tour import declared, started
from srtkit_conformance.kits.server.visit import at_rest, same_tokens
from srtkit_conformance.target import Target

CLIENTS = 8
BEGINNINGS = 6
"""How many prompts begin alike; together they do not fit into the pages that there are."""
BEGINNING, REST = 48, 24
"""Tokens that many prompts share, and at most so many of a prompt's own."""
ANSWER = 4
"""At most so many tokens of an answer: it is the number of requests and steps that counts."""
FEWEST = 200
"""Requests to warm up by; before, memory grows whatever the plugins do."""
GIVEN_UP_EACH = 8
"""One request in so many is aborted, or its client hangs up."""

WRITTEN = ("Pss_Anon:", "Pss_Shmem:")
"""Lines of /proc/PID/smaps_rollup (proc_pid_smaps(5)), in KiB."""


@dataclass(frozen=True)
class Stay:
    """How long: requests before memory is looked at first, and after; seconds, after which a slow device is done.

    `growth`: MiB that the second part may add. A server that keeps nothing takes some 5 at first, 2 at a time, as
    threads come to have memory of their own, and none after 3,000 requests.
    """

    warm_up: int = 1000
    requests: int = 4000
    seconds: float = 90.0
    growth: float = 8.0


@dataclass(frozen=True)
class _Request:
    number: int
    ids: list[int]
    tokens: int


BRIEF = Stay(warm_up=300, requests=500)
"""Of a self-test, whose mutant leaks more than any plugin that one would have to look for."""


def soak(target: Target) -> Outcome:
    """A stay at a server of the platform's choice of the other plugins, without those that refuse to be built."""
    stage, error = begun(staged(target, new(target.folder / "soak")))
    tries = 0
    while error is None:
        tries += 1
        found = _served(target, stage, new(target.folder / f"s{tries}"))
        if not isinstance(found, str):
            return found
        stage, error = begun(stage.without(frozenset({found})))
    if declared(target, error):
        return Refused(str(error))
    raise Failed(f"not even the platform's choice of the other plugins is served with it: {error}")


def _served(target: Target, stage: Stage, folder: Path) -> Outcome | str:
    """What a stay at the stage's first combination shows, or the other plugin, "kind:name", that refuses here."""
    model = stage.model(stage.first)
    model.expected  # noqa: B018 - computed now, before the server shares the cores
    server = started(target, stage, stage.first, folder)
    try:
        server.wait_until_ready()
        return stay(server, model, Stay() if target.servers is None else BRIEF)
    except Lost:
        if (absent := server.refused_by()) in ("", target.part):
            raise
        return absent
    finally:
        server.kill()


def stay(server: ServerProcess, model: ServedModel, how: Stay) -> Outcome:
    """Ask, rest, ask more. Raises `Failed` for memory that grew, and for pages that stay away."""
    client, requests = Client(server), drawn_requests(model.seed)
    warm = _ask(client, requests, how.warm_up, how.seconds)
    before = _held(client, server)
    asked = _ask(client, requests, how.requests, how.seconds)
    after = _held(client, server)
    ids, expected = model.prompts[0], model.expected[0]
    same_tokens(client.generate(ids, TOKENS)[0], expected, f"a prompt after {warm + asked} requests")
    growth = round(after - before, 1)
    figures = {"requests": warm + asked, "MiB": round(before), "growth, MiB": growth}
    if warm < FEWEST:
        return Informational(f"too slow to judge memory: {warm} requests in {how.seconds:g} s", figures)
    what = f"memory grows: by so many MiB over {asked} requests, after {warm} to warm up"
    expect(growth <= how.growth, what, observed=growth, limit=how.growth)
    return figures


def memory(pids: list[int]) -> float:
    """MiB that these processes have written, what they share counted once; 0 where the kernel does not tell.

    Files that they have mapped are left out: who else runs on the machine decides how much of those counts as theirs.
    """
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:  # it has ended meanwhile, or there is no /proc
            continue
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(WRITTEN))
    return total / 1024


def _held(client: Client, server: ServerProcess) -> float:
    """MiB when nothing runs and nothing is cached."""
    client.wait_for(at_rest, "requests that have ended still run, wait or have pages")
    client.flush_cache()
    client.wait_for(lambda figures: not figures["pages_cached"], "pages stay in the cache when nobody uses them")
    return memory(session_of(server.process.pid))


def drawn_requests(seed: int) -> Iterator[_Request]:
    """Without end: one of a few beginnings, then tokens of its own."""
    random = np.random.default_rng([seed, 4])
    beginnings = random.integers(0, VOCABULARY, (BEGINNINGS, BEGINNING)).tolist()
    number = 0
    while True:
        rest = random.integers(0, VOCABULARY, random.integers(1, REST)).tolist()
        yield _Request(number, beginnings[random.integers(BEGINNINGS)] + rest, int(random.integers(1, ANSWER + 1)))
        number += 1


def _ask(client: Client, requests: Iterator[_Request], most: int, seconds: float) -> int:
    """Ask the next ones, a few clients at once; how many it were."""
    deadline = time.monotonic() + seconds
    asked = 0
    with ThreadPoolExecutor(CLIENTS) as pool:
        while asked < most and time.monotonic() < deadline:
            some = list(islice(requests, min(CLIENTS * 4, most - asked)))
            list(pool.map(lambda one: _one(client, one), some))
            asked += len(some)
    return asked


def _one(client: Client, request: _Request) -> None:
    if request.number % GIVEN_UP_EACH:
        got, _ = client.generate(request.ids, request.tokens)
        expect(len(got) == request.tokens, "an answer is not of the length asked for", observed=len(got))
        return
    rid = f"soak {request.number}"
    with client.streaming(request.ids, TOKENS * 4, rid=rid) as events:
        next(events, None)
        if request.number % (2 * GIVEN_UP_EACH):
            client.abort(rid)
            list(events)
