"""Through `srt serve`, in every pair of plugins that go together: what a plugin does right alone, it may do wrong here.

All but one judge one tour: a server for each combination, asked the same from its start to its end. The soak has a
server of its own, of the first combination, and asks it for minutes.
"""

from __future__ import annotations

from collections.abc import Mapping

from srtkit_conformance.check import Informational, Outcome, check
from srtkit_conformance.kits.server.soak import soak as soaked
from srtkit_conformance.kits.server.tour import tour
from srtkit_conformance.target import Target

SECONDS = 900.0
"""Of the whole tour, some 20 servers, on a busy machine; each of its steps has a shorter limit."""


@check(
    "server.ready",
    level=3,
    clause="server: a combination that core finds legal is served",
    explain="Declared with `capabilities`, layouts or keys, and refused or failed by `build`, whose limits are those "
    "of a server: thousands of tokens a step, dozens of rows, several layers. Or it works in one process only.",
    seconds=SECONDS,
)
def ready(target: Target) -> Outcome:
    """A refusal by core before anything runs is one that was declared."""
    return tour(target).judge("ready")


@check(
    "server.tokens",
    level=3,
    clause="server: greedy tokens are those of the reference plugins, in float32",
    explain="A fault that grows with context or steps: a state that is right for the first step, an off-by-one at "
    "the edge of a chunk or page that one step alone does not meet, weights that are not those of the model.",
    seconds=SECONDS,
)
def tokens(target: Target) -> Outcome:
    """One client, prompts never seen before, cut into chunks in some combinations."""
    outcome = tour(target).judge("tokens")
    if target.kind == "graph_runner" and isinstance(outcome, Mapping) and not outcome["replayed"]:
        return Informational("it has recorded no step, in no combination", outcome)
    return outcome


@check(
    "server.again",
    level=3,
    clause="server: a prompt gives the same tokens again, whatever of it is cached",
    explain="A page that is not what the cache takes it for: written late, changed afterwards, or remembered by a "
    "backend beyond its life. The next turn of a conversation reuses pages that decode steps have written.",
    seconds=SECONDS,
)
def again(target: Target) -> Outcome:
    """The cache may or may not have them; how many tokens it had is among the figures."""
    return tour(target).judge("again")


@check(
    "server.crowd",
    level=3,
    clause="server: a request gives the same tokens whoever else is served",
    explain="Rows that see each other: a buffer for fewer rows than there are, something remembered for a position in "
    "the batch, a page that is taken while somebody still reads it.",
    seconds=SECONDS,
)
def crowd(target: Target) -> Outcome:
    """More clients at once than the batch has rows, with few pages, streaming."""
    return tour(target).judge("crowd")


@check(
    "server.given_up",
    level=3,
    clause="server: a request that is aborted, or whose client hangs up, leaves no page and no row behind",
    explain="Something is given back at the regular end only: a pin in the cache, a slot, a place in a queue. "
    "A message that is lost or late has the same effect.",
    seconds=SECONDS,
)
def given_up(target: Target) -> Outcome:
    """Running and waiting sequences; then the cache is flushed, which must empty it."""
    return tour(target).judge("given_up")


@check(
    "server.end",
    level=3,
    clause="server: told to stop it ends, and leaves no process and no file behind",
    explain="A thread that is no daemon keeps its process alive, a helper process is never ended, `close` raises or "
    "waits, or a cache of compiled kernels lies in the folder for temporary files.",
    seconds=SECONDS,
)
def end(target: Target) -> Outcome:
    """SIGTERM, as service managers send it."""
    return tour(target).judge("end")


@check(
    "server.soak",
    level=4,
    clause="server: memory and pages do not grow with the requests that were served",
    explain="Something is kept of every step or request: a tensor in a list, a table by request id, a lease that is "
    "never closed, a file or an event per step. Requests that were given up are the usual place.",
    seconds=SECONDS,
)
def soak(target: Target) -> Outcome:
    """Thousands of short requests, fewer on a slow device; prompts partly repeat, and every eighth is given up."""
    return soaked(target)
