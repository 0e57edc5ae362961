"""Runners that capture wrongly, or do not free what they should."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from srtkit.spec.errors import OutOfMemory, SrtError, Unsupported
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, GraphRunnerDescriptor, Program
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.graph_runner.simple import Outputs, SimpleRunner, Taken, simple

if TYPE_CHECKING:
    from torch import Tensor


class WrappedRunner(GraphRunner):
    """Hands every call to `inner`."""

    def __init__(self, inner: GraphRunner) -> None:
        self.inner = inner

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        self.inner.prepare(program, keys)

    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        return self.inner.run(program, key)

    def close(self) -> None:
        self.inner.close()


class TakesAnyKey(WrappedRunner):
    """Says nothing when it is asked to capture."""

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        self.inner.prepare(program, ())


@mutant(
    "graph_runner.takes_any_key",
    of="eager",
    sentence="Captures nothing, and does not say so when it is asked to.",
    killed_by=("graph_runner.refuses_keys",),
)
def takes_any_key(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    def build(request: GraphRunnerBuild) -> GraphRunner:
        return TakesAnyKey(descriptor.build(request))

    return replace(descriptor, build=build)


class AsListed(SimpleRunner):
    """Captures in the order of the list."""

    def order(self, keys: Sequence[StepKey]) -> list[StepKey]:
        return list(keys)


class KeepsTheLast(SimpleRunner):
    """A prepare replaces what the one before has captured."""

    def keep(self, made: dict[object, Taken]) -> None:
        if made:
            self.taken = made


class OwnError(SimpleRunner):
    """Lets the body's error through."""

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        try:
            super().prepare(program, keys)
        except Unsupported as error:
            cause = error.__cause__
            raise cause if cause is not None and not isinstance(cause, SrtError) else error from None


class NamesNoKey(SimpleRunner):
    """Says what went wrong, not where."""

    def error(self, key: StepKey, error: Exception) -> SrtError:
        return Unsupported("graph_runner:simple", f"cannot capture: {error!r}")


class KeepsThePartial(SimpleRunner):
    """What was captured when memory ran out stays, in case it is of use."""

    def __init__(self, build: GraphRunnerBuild) -> None:
        super().__init__(build)
        self.partial: list[Taken] = []

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        try:
            super().prepare(program, keys)
        except OutOfMemory:
            raise
        except Unsupported:
            self.free_partial()
            raise

    def failed(self, made: Iterable[Taken]) -> None:
        self.partial += made

    def free_partial(self) -> None:
        """Free it after all."""
        for one in self.partial:
            one.graph.close()
        self.partial.clear()

    def close(self) -> None:
        super().close()
        self.free_partial()


class NeverCloses(SimpleRunner):
    """Graphs stay until the process ends."""

    def close(self) -> None:
        """Nothing."""


class Clones(SimpleRunner):
    """Every run has outputs of its own."""

    def replay(self, taken: Taken) -> Outputs:
        return {name: one.clone() for name, one in super().replay(taken).items()}


as_listed = mutant(
    "graph_runner.as_listed",
    of="cuda-full",
    sentence="Captures in the order of the list.",
    killed_by=("graph_runner.largest_first",),
)(simple(AsListed))

keeps_the_last = mutant(
    "graph_runner.keeps_the_last",
    of="cuda-full",
    sentence="A second prepare drops what the first has captured.",
    killed_by=("graph_runner.prepare_again",),
)(simple(KeepsTheLast))

own_error = mutant(
    "graph_runner.own_error",
    of="cuda-full",
    sentence="Lets the body's error through.",
    killed_by=("graph_runner.failed_capture",),
)(simple(OwnError))

names_no_key = mutant(
    "graph_runner.names_no_key",
    of="cuda-full",
    sentence="The error of a failed capture does not name the key.",
    killed_by=("graph_runner.failed_capture", "graph_runner.pressure"),
)(simple(NamesNoKey))

keeps_the_partial = mutant(
    "graph_runner.keeps_the_partial",
    of="cuda-full",
    sentence="Keeps what it had captured when memory ran out.",
    killed_by=("graph_runner.pressure",),
)(simple(KeepsThePartial))

never_closes = mutant(
    "graph_runner.never_closes",
    of="cuda-full",
    sentence="close frees nothing.",
    killed_by=("graph_runner.close",),
)(simple(NeverCloses))

clones = mutant(
    "graph_runner.clones",
    of="cuda-full",
    sentence="Allocates outputs in every run.",
    killed_by=("graph_runner.no_allocation",),
)(simple(Clones))
