"""Capture and replay through a platform's primitives, or none where the facts say none."""

from __future__ import annotations

import torch

from srtkit.spec.platform import GraphPrimitives
from srtkit_conformance.check import Failed, Outcome, Refused, check, expect
from srtkit_conformance.kits.platform.rig import CHAIN, Rig, opened, values, work
from srtkit_conformance.target import Target

NONE = Refused("the device captures no graphs")


def _graphs(rig: Rig) -> GraphPrimitives | None:
    """The primitives, if they are what the facts say."""
    graphs = rig.platform.graphs()
    expect((graphs is not None) == rig.facts.graphs, "facts.graphs and graphs() disagree", observed=graphs)
    return graphs


@check(
    "platform.graphs",
    level=1,
    clause="platform/1.0: capture records what work launches; replay launches it on the current stream",
    explain="Values of the capture are baked into the graph, a replay runs on the stream of the capture, or facts "
    "and object disagree about graphs.",
)
def graphs(target: Target) -> Outcome:
    with opened(target) as rig:
        graphs = _graphs(rig)
        if graphs is None:
            return NONE
        x, y = rig.zeros(64), rig.zeros(64)
        rig.wait()

        def body() -> None:
            work(x)
            y.copy_(x * 2)

        body()  # kernels are chosen before the capture
        handle = graphs.capture(graphs.new_pool(), body)
        for value in (0, 5, -3):
            x.fill_(value)
            handle.replay()
            seen = values(y)
            expect(seen == [2 * (value + CHAIN)], "a replay does not compute on what is there", observed=seen)
        rig.wait()
        with rig.platform.new_stream() as side:
            x.fill_(1)
            handle.replay()
            host = y.cpu()
            side.synchronize()
        expect(values(host) == [2 * (1 + CHAIN)], "a replay is not on the current stream", observed=host[:4])
        handle.close()
        return {}


@check(
    "platform.graph_errors",
    level=1,
    clause="platform/1.0: capture: errors leave the device usable",
    explain="The stream stays in capture mode after an error in the body, or what was recorded before it is launched.",
)
def graph_errors(target: Target) -> Outcome:
    with opened(target) as rig:
        graphs = _graphs(rig)
        if graphs is None:
            return NONE
        x = rig.zeros(64)
        work(x)
        rig.wait()

        def breaks() -> None:
            work(x)
            raise KeyError("in the body")

        try:
            graphs.capture(graphs.new_pool(), breaks)
        except KeyError:
            pass
        except Exception as error:
            raise Failed("the body's own error is lost", observed=repr(error), limit="KeyError") from error
        else:
            raise Failed("an error in the body is swallowed")
        seen = values(x)
        expect(seen == [CHAIN], "what a failed capture recorded has run", observed=seen, limit=CHAIN)
        handle = graphs.capture(graphs.new_pool(), lambda: work(x))
        handle.replay()
        seen = values(x)
        expect(seen == [2 * CHAIN], "capture does not work after a failed one", observed=seen)
        handle.close()
        return {}


@check(
    "platform.graph_pool",
    level=1,
    clause="platform/1.0: new_pool: a memory pool that several graphs share",
    explain="One graph's temporary memory overlaps another's live output, or closing one frees what the other uses.",
)
def graph_pool(target: Target) -> Outcome:
    with opened(target) as rig:
        graphs = _graphs(rig)
        if graphs is None:
            return NONE
        pool, x = graphs.new_pool(), rig.zeros(64)
        made: list[torch.Tensor] = []
        (x + 1).sum()
        rig.wait()
        handles = [graphs.capture(pool, lambda n=n: made.append((x + n) * 10)) for n in (1, 2)]  # type: ignore[misc]
        x.fill_(4)
        for handle in handles:
            handle.replay()
        both = [values(one) for one in made]
        expect(both == [[50], [60]], "graphs of one pool overwrite each other's outputs", observed=both)
        handles[0].close()
        x.fill_(5)
        handles[1].replay()
        seen = values(made[1])
        expect(seen == [70], "closing one graph breaks another of its pool", observed=seen)
        handles[1].close()
        return {}


@check(
    "platform.graph_pieces",
    level=1,
    clause="platform/1.0: begin, end: recordings follow each other, and work between their replays sees what they did",
    explain="A recording that was given up is not over, what it recorded is launched, or an alias is a copy.",
)
def graph_pieces(target: Target) -> Outcome:
    with opened(target) as rig:
        graphs = _graphs(rig)
        if graphs is None:
            return NONE
        pool, x, out = graphs.new_pool(), rig.zeros(64), rig.zeros(64)
        out.copy_((x + 1) * 10)  # kernels are chosen before the capture
        rig.wait()
        graphs.abandon()  # of nothing
        graphs.begin(pool)
        between = x + 1
        first = graphs.end()
        kept = graphs.alias(between)
        graphs.begin(pool)
        work(x)
        graphs.abandon()
        graphs.begin(pool)
        out.copy_(between * 10)
        second = graphs.end()
        del between
        for value in (1, 4):
            x.fill_(value)
            first.replay()
            kept.mul_(2)
            second.replay()
            seen = values(out)
            expect(seen == [(value + 1) * 20], "work between two replays has no effect", observed=seen)
            seen = values(x)
            expect(seen == [value], "what was given up is in the next graph", observed=seen)
        first.close()
        second.close()
        return {}
