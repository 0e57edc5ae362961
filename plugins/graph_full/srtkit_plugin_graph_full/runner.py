"""Captures a program's body once a key, and replays it. Uses the platform contract only: any device with graphs.

Outputs are copied out of the graph into a ring of depth + 1, so that they outlive `depth` further runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from srtkit.spec.errors import EngineError, OutOfMemory, SrtError, Unsupported
from srtkit.spec.graph_runner import GraphRunner, Program
from srtkit.spec.platform import GraphHandle, GraphPrimitives, Platform
from srtkit.spec.step_plan import StepKey
from srtkit_plugin_graph_full import PART

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class _Captured:
    """A graph and where its outputs go, turn by turn."""

    graph: GraphHandle
    outputs: Mapping[str, Tensor]
    ring: list[dict[str, Tensor]]
    turn: int = field(default=0)

    def run(self) -> Mapping[str, Tensor]:
        self.graph.replay()
        self.turn = (self.turn + 1) % len(self.ring)
        place = self.ring[self.turn]
        for name, output in self.outputs.items():
            place[name].copy_(output)
        return place


class FullGraphRunner(GraphRunner):
    """One graph for each program and key; all share a pool."""

    def __init__(self, platform: Platform, graphs: GraphPrimitives, depth: int) -> None:
        self._platform, self._graphs, self._depth = platform, graphs, depth
        self._pool = graphs.new_pool()
        self._captured: dict[Program, dict[StepKey, _Captured]] = {}

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        """Capture, largest first. What it has captured before an error is freed."""
        made: dict[StepKey, _Captured] = {}
        for key in sorted(keys, key=lambda key: (key.tokens, key.rows), reverse=True):
            try:
                made[key] = self._capture(program, key)
            except Exception as error:
                for one in made.values():
                    one.graph.close()
                raise _about(key, error) from error
        self._captured.setdefault(program, {}).update(made)

    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        """`before`, then the graph. Raises `Unsupported` for a key that was not prepared."""
        captured = self._captured.get(program, {}).get(key)
        if captured is None:
            raise Unsupported(PART, f"{key} was not captured", 'end the list of runners with "eager"')
        program.before(key)
        return captured.run()

    def close(self) -> None:
        """Free the graphs. `prepare` may follow."""
        for by_key in self._captured.values():
            for one in by_key.values():
                one.graph.close()
        self._captured.clear()

    def _capture(self, program: Program, key: StepKey) -> _Captured:
        program.before(key)
        program.body(key)  # compiles and loads kernels, and chooses algorithms, which no capture may do
        self._platform.current_stream().synchronize()
        outputs: dict[str, Tensor] = {}
        graph = self._graphs.capture(self._pool, lambda: outputs.update(program.body(key)))
        try:
            ring = [
                {name: self._platform.allocate("graphs", one.shape, one.dtype) for name, one in outputs.items()}
                for _ in range(self._depth + 1)
            ]
        except OutOfMemory:
            graph.close()
            raise
        return _Captured(graph, outputs, ring)


def _about(key: StepKey, error: Exception) -> SrtError:
    """The error that the contract promises, naming the key."""
    cause = error.cause if isinstance(error, SrtError) else f"{type(error).__name__}: {error}"
    text = f"cannot capture {key}: {cause}"
    if isinstance(error, OutOfMemory):
        return OutOfMemory(PART, text, "capture fewer or smaller steps")
    if isinstance(error, EngineError):
        return EngineError(PART, text, error.remedy)
    return Unsupported(PART, text, error.remedy if isinstance(error, SrtError) else "name another runner")
