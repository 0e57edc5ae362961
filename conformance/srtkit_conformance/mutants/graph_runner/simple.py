"""A second runner over a platform's graphs: legal as it stands, its methods small so that a mutant can replace one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from srtkit.spec.errors import OutOfMemory, SrtError, Unsupported
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, GraphRunnerDescriptor, Program
from srtkit.spec.platform import GraphHandle
from srtkit.spec.step_plan import StepKey

if TYPE_CHECKING:
    from torch import Tensor

PART = "graph_runner:simple"
Outputs = Mapping[str, "Tensor"]


@dataclass
class Taken:
    """A captured step. `ring` takes its outputs in turn."""

    program: Program
    key: StepKey
    graph: GraphHandle
    outputs: dict[str, Tensor]
    ring: list[dict[str, Tensor]]
    turn: int = 0


class SimpleRunner(GraphRunner):
    """Captures whole steps."""

    def __init__(self, build: GraphRunnerBuild) -> None:
        graphs = build.platform.graphs()
        if graphs is None:
            raise Unsupported(PART, "this platform captures no graphs")
        self.build, self.graphs = build, graphs
        self.pool = graphs.new_pool()
        self.taken: dict[object, Taken] = {}

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        self.refuse(program)
        made: dict[object, Taken] = {}
        for key in self.order(keys):
            try:
                made[self.name(program, key)] = self.capture(program, key)
            except Exception as error:
                self.failed(made.values())
                raise self.error(key, error) from error
        self.keep(made)

    def run(self, program: Program, key: StepKey) -> Outputs:
        taken = self.find(program, key)
        program.before(key)
        return self.replay(taken)

    def close(self) -> None:
        self.failed(self.taken.values())
        self.taken.clear()

    def refuse(self, program: Program) -> None:
        """What no single graph can be."""
        if program.gates():
            raise Unsupported(PART, "has no gates")

    def order(self, keys: Sequence[StepKey]) -> list[StepKey]:
        """Largest first."""
        return sorted(keys, key=lambda key: (key.tokens, key.rows), reverse=True)

    def name(self, program: Program, key: StepKey) -> object:
        """What tells captured steps apart."""
        return program, key

    def capture(self, program: Program, key: StepKey) -> Taken:
        """One key."""
        program.before(key)
        outputs: dict[str, Tensor] = {}
        graph = self.graphs.capture(self.pool, lambda: outputs.update(program.body(key)))
        try:
            ring = [self.copies(outputs) for _ in range(self.ring_size())]
        except OutOfMemory:
            graph.close()
            raise
        return Taken(program, key, graph, outputs, ring)

    def copies(self, outputs: Outputs) -> dict[str, Tensor]:
        """Memory for outputs."""
        allocate = self.build.platform.allocate
        return {name: allocate("graphs", one.shape, one.dtype) for name, one in outputs.items()}

    def ring_size(self) -> int:
        """Runs whose outputs are kept."""
        return self.build.limits.depth + 1

    def keep(self, made: dict[object, Taken]) -> None:
        """Add what was captured."""
        self.taken |= made

    def failed(self, made: Iterable[Taken]) -> None:
        """Free what was captured."""
        for one in made:
            one.graph.close()

    def error(self, key: StepKey, error: Exception) -> SrtError:
        """The contract's error for another."""
        cause = f"cannot capture {key}: {error.cause if isinstance(error, SrtError) else error!r}"
        return OutOfMemory(PART, cause) if isinstance(error, OutOfMemory) else Unsupported(PART, cause)

    def find(self, program: Program, key: StepKey) -> Taken:
        """The captured step."""
        found = self.taken.get(self.name(program, key))
        if found is None:
            raise Unsupported(PART, f"{key} was not captured")
        return found

    def replay(self, taken: Taken) -> Outputs:
        """Run it, and copy its outputs out."""
        taken.graph.replay()
        taken.turn = (taken.turn + 1) % len(taken.ring)
        place = taken.ring[taken.turn]
        for name, output in taken.outputs.items():
            place[name].copy_(output)
        return place


Make = Callable[[GraphRunnerDescriptor], GraphRunnerDescriptor]


def simple(runner: Callable[[GraphRunnerBuild], GraphRunner] = SimpleRunner) -> Make:
    """The descriptor with another runner."""
    return lambda descriptor: replace(descriptor, build=runner)
