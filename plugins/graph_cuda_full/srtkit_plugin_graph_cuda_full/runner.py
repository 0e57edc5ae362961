"""Captures a program's decode steps and replays them: one launch a step.

Graphs share a pool, so one may overwrite what another left there. Outputs must outlive `depth` further runs of any key:
a graph ends with copying them to buffers outside, of which there are depth + 1 sets; each key is captured once for
every set, and runs take turns. Knows the platform contract, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """A key's graphs, one for every set of outputs, and what each leaves there."""

    graphs: list[GraphHandle] = field(default_factory=list)
    outputs: list[Mapping[str, Tensor]] = field(default_factory=list)

    def close(self) -> None:
        for graph in self.graphs:
            graph.close()
        self.outputs.clear()


@dataclass
class _Prepared:
    """Of a program: its keys' graphs, the sets of outputs for the largest of them, and whose turn it was last."""

    sets: list[dict[str, Tensor]]
    keys: dict[StepKey, _Captured] = field(default_factory=dict)
    turn: int = 0

    def run(self, key: StepKey) -> Mapping[str, Tensor]:
        self.turn = (self.turn + 1) % len(self.sets)
        captured = self.keys[key]
        captured.graphs[self.turn].replay()
        return captured.outputs[self.turn]

    def close(self) -> None:
        for one in self.keys.values():
            one.close()
        self.sets.clear()


class CudaFullRunner(GraphRunner):
    """Graphs of each program and key, in one pool."""

    def __init__(self, platform: Platform, graphs: GraphPrimitives, turns: int) -> None:
        self._platform, self._graphs, self._turns = platform, graphs, turns
        self._pool = graphs.new_pool()
        self._prepared: dict[Program, list[_Prepared]] = {}

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        """Capture, largest first. What it has captured before an error is freed."""
        made = _Prepared([{} for _ in range(self._turns)])
        for key in sorted(keys, key=lambda key: key.rows, reverse=True):
            made.keys[key] = _Captured()
            try:
                self._capture(program, key, made)
            except Exception as error:
                made.close()
                raise _about(key, error) from error
        self._prepared.setdefault(program, []).append(made)

    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        """`before`, then one launch. Raises `Unsupported` for a key that was not prepared."""
        prepared = next((one for one in reversed(self._prepared.get(program, [])) if key in one.keys), None)
        if prepared is None:
            raise Unsupported(PART, f"{key} was not captured", 'end the list of runners with "eager"')
        program.before(key)
        return prepared.run(key)

    def close(self) -> None:
        """Free the graphs. `prepare` may follow."""
        for prepared in self._prepared.values():
            for one in prepared:
                one.close()
        self._prepared.clear()

    def _capture(self, program: Program, key: StepKey, made: _Prepared) -> None:
        program.before(key)
        outputs = program.body(key)  # compiles and loads kernels, and chooses algorithms, which no capture may do
        self._platform.current_stream().synchronize()
        captured = made.keys[key]
        for kept in made.sets:
            for name, one in outputs.items():
                if name not in kept:  # of the first, the largest key
                    kept[name] = self._platform.allocate("graphs", one.shape, one.dtype)
            views = {name: kept[name][: one.shape[0]] for name, one in outputs.items()}

            def work(views: Mapping[str, Tensor] = views) -> None:
                for name, one in program.body(key).items():
                    views[name].copy_(one)

            captured.graphs.append(self._graphs.capture(self._pool, work))
            captured.outputs.append(views)


def _about(key: StepKey, error: Exception) -> SrtError:
    """The error that the contract promises, naming the key."""
    cause = error.cause if isinstance(error, SrtError) else f"{type(error).__name__}: {error}"
    text = f"cannot capture {key}: {cause}"
    if isinstance(error, OutOfMemory) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return OutOfMemory(PART, text, "set max_rows of graph_runner.options.cuda-full, or lower memory.fraction")
    if isinstance(error, EngineError):
        return EngineError(PART, text, error.remedy)
    return Unsupported(PART, text, error.remedy if isinstance(error, SrtError) else "name another runner")
