"""Platforms whose graphs do not do again what was captured."""

from __future__ import annotations

from collections.abc import Callable

from srtkit.spec.platform import GraphHandle, GraphPrimitives, Platform
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.platform.wrap import Make, WrappedPlatform, around


class WrappedHandle(GraphHandle):
    """Legal as it stands."""

    def __init__(self, inner: GraphHandle, graphs: WrappedGraphs) -> None:
        self.inner, self.graphs = inner, graphs

    def replay(self) -> None:
        self.inner.replay()

    def close(self) -> None:
        self.inner.close()


class WrappedGraphs(GraphPrimitives):
    """Legal as it stands."""

    handle: type[WrappedHandle] = WrappedHandle

    def __init__(self, inner: GraphPrimitives, platform: Platform) -> None:
        self.inner, self.platform = inner, platform
        self.handles: list[WrappedHandle] = []

    def new_pool(self) -> object:
        return self.inner.new_pool()

    def begin(self, pool: object) -> None:
        self.inner.begin(pool)

    def end(self) -> GraphHandle:
        self.handles.append(self.handle(self.inner.end(), self))
        return self.handles[-1]

    def abandon(self) -> None:
        self.inner.abandon()


def with_graphs(graphs: Callable[[GraphPrimitives, Platform], GraphPrimitives]) -> Make:
    """A descriptor whose graph primitives are wrapped."""

    class WithGraphs(WrappedPlatform):
        def graphs(self) -> GraphPrimitives | None:
            inner = self.inner.graphs()
            return None if inner is None else graphs(inner, self.inner)

    return around(WithGraphs)


class RunsOnce(WrappedHandle):
    """The second replay repeats nothing."""

    done = False

    def replay(self) -> None:
        if not self.done:
            self.inner.replay()
        self.done = True


class ReplaysOnce(WrappedGraphs):
    handle = RunsOnce


class SwallowsErrors(WrappedGraphs):
    """A body that fails is captured as far as it came."""

    def capture(self, pool: object, work: Callable[[], None]) -> GraphHandle:
        def quiet() -> None:
            try:
                work()
            except KeyError:
                return

        return super().capture(pool, quiet)


class ClosesThePool(WrappedHandle):
    """Closing one graph closes the others."""

    def close(self) -> None:
        for one in self.graphs.handles:
            one.inner.close()


class OnePool(WrappedGraphs):
    handle = ClosesThePool


class GivesNothingUp(WrappedGraphs):
    """A recording that is abandoned goes on with the next one."""

    opened = False

    def begin(self, pool: object) -> None:
        if not self.opened:
            super().begin(pool)
        self.opened = True

    def end(self) -> GraphHandle:
        self.opened = False
        return super().end()

    def abandon(self) -> None:
        return


replays_once = mutant(
    "platform.replays_once",
    of="fakedev",
    sentence="A graph runs the first time only.",
    killed_by=("platform.graphs",),
)(with_graphs(ReplaysOnce))

swallows_errors = mutant(
    "platform.swallows_errors",
    of="fakedev",
    sentence="An error in a captured body is lost.",
    killed_by=("platform.graph_errors",),
)(with_graphs(SwallowsErrors))

closes_the_pool = mutant(
    "platform.closes_the_pool",
    of="fakedev",
    sentence="Closing one graph closes all of its pool.",
    killed_by=("platform.graph_pool",),
)(with_graphs(OnePool))

gives_nothing_up = mutant(
    "platform.gives_nothing_up",
    of="fakedev",
    sentence="What was recorded before a recording was given up is in the next graph.",
    killed_by=("platform.graph_pieces", "platform.graph_errors"),
)(with_graphs(GivesNothingUp))
