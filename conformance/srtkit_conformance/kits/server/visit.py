"""What a server is asked from its start to its end, and what was found. Knows routes and figures, no plugin.

Each part of a visit has the name of the check that judges it. A part that fails does not keep the others from
being asked, unless the server is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from srtkit_conformance.check import Failed, Figures, expect
from srtkit_conformance.kits.server.client import Client
from srtkit_conformance.kits.server.model import TOKENS, ServedModel
from srtkit_conformance.kits.server.process import Lost, ServerProcess

CLIENTS = 24
FEWEST = 3
"""Prompts that are asked on any device; the others if there is time."""
LEAVING = 3
GIVEN_UP = 24
"""Sequences of a request, more than the batch has rows: some run and some wait when it is given up."""
WHOLE_CONTEXT = 1 << 16
"""More tokens than a context has: a sequence that is not ended runs for hundreds of steps."""
FEWEST_ENDED = (LEAVING - 1) * GIVEN_UP + 1
"""Sequences that are aborted at least, some of the last request among them: figures older than that are no rest."""


@dataclass
class Visit:
    """Found: part → figures, or what is wrong. `refused_by`: the plugin that would not start, "kind:name"."""

    found: dict[str, Figures | Failed] = field(default_factory=dict)
    refused_by: str = ""

    def part(self, name: str, work: Callable[[], Figures | None]) -> None:
        """Do one part and keep what came of it."""
        lost = next((one for one in self.found.values() if isinstance(one, Lost)), None)
        try:
            if lost is not None:
                raise Lost(f"not reached: {lost.message.splitlines()[0]}")
            self.found[name] = work() or {}
        except Failed as failed:
            self.found[name] = failed


def visit(server: ServerProcess, model: ServedModel, seconds: float, *, recorded: bool = False) -> Visit:
    """Ask everything of a server that has just been started, and end it.

    After `seconds` of its first part a slow device is asked no further prompts, in that part and all others.
    `recorded`: some of its steps must be replays of recorded ones.
    """
    found, guest = Visit(), _Guest(Client(server), model, seconds, recorded)
    try:
        found.part("ready", server.wait_until_ready)
        found.refused_by = server.refused_by()
        found.part("tokens", guest.tokens)
        found.part("again", guest.again)
        found.part("crowd", guest.crowd)
        found.part("given_up", guest.given_up)
        found.part("end", server.stop)
    finally:
        server.kill()
    return found


@dataclass
class _Guest:
    """A client with the prompts of a model, of which it asks the first `asked`."""

    client: Client
    model: ServedModel
    seconds: float
    recorded: bool
    asked: int = 0

    def tokens(self) -> Figures:
        """One prompt after another, none of them seen before."""
        begin = time.monotonic()
        for ids, expected in zip(self.model.prompts, self.model.expected, strict=True):
            got, _ = self.client.generate(ids, TOKENS)
            same_tokens(got, expected, f"prompt {self.asked} of {len(ids)} tokens")
            self.asked += 1
            if self.asked >= FEWEST and time.monotonic() - begin > self.seconds:
                break
        figures = self.client.wait_for(lambda now: not self.recorded or _replayed(now) > 0, "all steps ran eagerly")
        return {"prompts": self.asked, "replayed": _replayed(figures)}

    def again(self) -> Figures:
        """The same prompts, then each with half of its answer, as the next turn of a conversation."""
        cached, half = 0, TOKENS // 2
        for number, (ids, expected) in enumerate(self._known()):
            got, hits = self.client.generate(ids, TOKENS)
            same_tokens(got, expected, f"prompt {number} for the second time, {hits} of {len(ids)} tokens cached")
            got, more = self.client.generate([*ids, *expected[:half]], half)
            same_tokens(got, expected[half:], f"prompt {number} with its answer, {more} tokens cached")
            cached += hits + more
        return {"cached_tokens": cached}

    def crowd(self) -> Figures:
        """Clients at once, more than rows: the same prompts, of different lengths."""
        known = self._known()

        def one(number: int) -> None:
            ids, expected = known[number % len(known)]
            tokens = TOKENS - number % 5
            same_tokens(self.client.stream(ids, tokens), expected[:tokens], f"a prompt among {CLIENTS} clients")

        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(one, number) for number in range(CLIENTS)]:
                done.result()
        return {"clients": CLIENTS}

    def given_up(self) -> Figures:
        """Clients that hang up and requests that are aborted, as they run and as they wait; nothing of them stays."""
        client, known = self.client, self._known()
        before = client.figures()["aborted_total"]
        for number in range(LEAVING):
            rid = f"leaving {number}"
            ids, _ = known[number % len(known)]
            with client.streaming(ids, WHOLE_CONTEXT, rid=rid, n=GIVEN_UP) as events:
                next(events, None)
                if number % 2:
                    client.abort(rid)
                    list(events)
        lost = f"the engine was not told that requests were given up: fewer than {FEWEST_ENDED} sequences are aborted"
        client.wait_for(lambda figures: figures["aborted_total"] - before >= FEWEST_ENDED, lost)
        client.wait_for(at_rest, "requests that were given up still run, wait or have pages")
        aborted = int(client.figures()["aborted_total"] - before)
        client.flush_cache()
        client.wait_for(lambda figures: not figures["pages_cached"], "pages stay in the cache when nobody uses them")
        ids, expected = known[0]
        same_tokens(client.generate(ids, TOKENS)[0], expected, "a prompt after others were given up")
        return {"aborted": aborted}

    def _known(self) -> list[tuple[tuple[int, ...], list[int]]]:
        """Prompts that were asked already, and what they are continued with."""
        return list(zip(self.model.prompts, self.model.expected, strict=True))[: max(1, self.asked)]


def _replayed(figures: dict[str, float]) -> int:
    """At least so many. Eager steps are counted when they begin, all steps when they end: one may be between."""
    return max(0, int(figures["steps_total"] - figures["eager_steps_total"]))


def at_rest(figures: dict[str, float]) -> bool:
    """Whether nothing runs, waits or has pages."""
    return not (figures["running"] or figures["waiting"] or figures["pages_used"])


def same_tokens(got: list[int], expected: list[int], what: str) -> None:
    """Raises `Failed` for other tokens."""
    wrong = next((at for at, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), len(got))
    expect(got == expected, f"{what}: other tokens, from number {wrong} on", observed=got, limit=expected)
