"""Captures a program's decode steps and replays them: one launch a step, no copy of its outputs.

Outputs must outlive `depth` further runs, so each key is captured depth + 1 times, and runs take turns. The graphs
share a pool: only their outputs are memory of their own. Knows the platform contract, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from srtkit.spec.errors import EngineError, OutOfMemory, SrtError, Unsupported
from srtkit.spec.graph_runner import GraphRunner, Program
from srtkit.spec.platform import GraphHandle, GraphPrimitives, Platform
from srtkit.spec.step_plan import StepKey
from srtkit_plugin_graph_cuda_full import PART

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class _Captured:
    """The graphs of a key and their outputs; `turn` is the one that ran last."""

    graphs: list[GraphHandle]
    outputs: list[Mapping[str, Tensor]]
    turn: int = 0

    def run(self) -> Mapping[str, Tensor]:
        self.turn = (self.turn + 1) % len(self.graphs)
        self.graphs[self.turn].replay()
        return self.outputs[self.turn]

    def close(self) -> None:
        for graph in self.graphs:
            graph.close()
        self.outputs.clear()


class CudaFullRunner(GraphRunner):
    """Graphs of each program and key, in one pool."""

    def __init__(self, platform: Platform, graphs: GraphPrimitives, turns: int) -> None:
        self._platform, self._graphs, self._turns = platform, graphs, turns
        self._pool = graphs.new_pool()
        self._captured: dict[Program, dict[StepKey, _Captured]] = {}

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        """Capture, largest first. What it has captured before an error is freed."""
        made: dict[StepKey, _Captured] = {}
        for key in sorted(keys, key=lambda key: key.rows, reverse=True):
            made[key] = _Captured([], [])
            try:
                self._capture(program, key, made[key])
            except Exception as error:
                for one in made.values():
                    one.close()
                raise _about(key, error) from error
        self._captured.setdefault(program, {}).update(made)

    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        """`before`, then one launch. Raises `Unsupported` for a key that was not prepared."""
        captured = self._captured.get(program, {}).get(key)
        if captured is None:
            raise Unsupported(PART, f"{key} was not captured", 'end the list of runners with "eager"')
        program.before(key)
        return captured.run()

    def close(self) -> None:
        """Free the graphs. `prepare` may follow."""
        for by_key in self._captured.values():
            for one in by_key.values():
                one.close()
        self._captured.clear()

    def _capture(self, program: Program, key: StepKey, into: _Captured) -> None:
        program.before(key)
        program.body(key)  # compiles and loads kernels, and chooses algorithms, which no capture may do
        self._platform.current_stream().synchronize()
        for _ in range(self._turns):
            outputs: dict[str, Tensor] = {}
            into.graphs.append(self._graphs.capture(self._pool, lambda to=outputs: to.update(program.body(key))))  # type: ignore[misc]
            into.outputs.append(outputs)


def _about(key: StepKey, error: Exception) -> SrtError:
    """The error that the contract promises, naming the key."""
    cause = error.cause if isinstance(error, SrtError) else f"{type(error).__name__}: {error}"
    text = f"cannot capture {key}: {cause}"
    if isinstance(error, OutOfMemory) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return OutOfMemory(PART, text, "set max_rows of graph_runner.options.cuda-full, or lower memory.fraction")
    if isinstance(error, EngineError):
        return EngineError(PART, text, error.remedy)
    return Unsupported(PART, text, error.remedy if isinstance(error, SrtError) else "name another runner")
