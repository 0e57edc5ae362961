"""Captures a program's steps and replays them. Uses the platform contract only: any device with graphs.

Graphs share a pool, so one may overwrite what another left there. Outputs must outlive `depth` further runs of any key:
a step ends with copying them to buffers outside, of which there are depth + 1 sets; each key is captured once for
every set, and runs take turns.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from srtkit.spec.errors import EngineError, OutOfMemory, SrtError, Unsupported
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, Program
from srtkit.spec.step_plan import StepKey
from srtkit_plugin_graph_cuda.pieces import Outputs, Pieces, capture, run_apart


@dataclass
class _Captured:
    """A key's pieces, once for every set of outputs, and what each leaves there."""

    pieces: list[Pieces] = field(default_factory=list)
    outputs: list[dict[str, Tensor]] = field(default_factory=list)


@dataclass
class _Prepared:
    """Of a program: its captured keys, the sets of outputs for the largest of them, and whose turn it was last."""

    sets: list[dict[str, Tensor]]
    keys: dict[StepKey, _Captured] = field(default_factory=dict)
    turn: int = 0

    def run(self, key: StepKey) -> Mapping[str, Tensor]:
        self.turn = (self.turn + 1) % len(self.sets)
        captured = self.keys[key]
        captured.pieces[self.turn].replay()
        return captured.outputs[self.turn]

    def close(self) -> None:
        for captured in self.keys.values():
            for one in captured.pieces:
                one.close()
        self.keys.clear()
        self.sets.clear()


class CapturingRunner(GraphRunner):
    """Graphs of each program and key, in one pool. `cuts`: split at what a program marks; `gates`: at its gates."""

    def __init__(self, part: str, build: GraphRunnerBuild, *, cuts: bool, gates: bool) -> None:
        graphs = build.platform.graphs()
        if graphs is None:
            raise Unsupported(part, "this platform captures no graphs", "name another runner")
        self._part, self._platform, self._graphs = part, build.platform, graphs
        self._cuts, self._gates = cuts, gates
        self._turns = build.limits.depth + 1
        self._pool = graphs.new_pool()
        self._prepared: dict[Program, list[_Prepared]] = {}

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        """Capture, largest first. What it has captured before an error is freed."""
        marks = self._marks(program)
        made = _Prepared([{} for _ in range(self._turns)])
        for key in sorted(keys, key=lambda key: (key.tokens, key.rows), reverse=True):
            try:
                self._capture(program, key, marks, made)
            except Exception as error:
                traceback.clear_frames(error.__traceback__)  # their tensors are memory of the pool
                made.close()
                raise self._about(key, error) from error
        self._prepared.setdefault(program, []).append(made)

    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        """`before`, then the graphs. Raises `Unsupported` for a key that was not prepared."""
        prepared = next((one for one in reversed(self._prepared.get(program, [])) if key in one.keys), None)
        if prepared is None:
            raise Unsupported(self._part, f"{key} was not captured", 'end the list of runners with "eager"')
        program.before(key)
        return prepared.run(key)

    def close(self) -> None:
        """Free the graphs. `prepare` may follow."""
        for prepared in self._prepared.values():
            for one in prepared:
                one.close()
        self._prepared.clear()

    def _marks(self, program: Program) -> frozenset[str]:
        gates = program.gates()
        if gates and not self._gates:
            cause = f"a step that waits at {', '.join(sorted(gates))} is no single graph"
            raise Unsupported(self._part, cause, 'name "cuda-breakable" before it')
        return gates | program.cuts() if self._cuts else gates

    def _capture(self, program: Program, key: StepKey, marks: frozenset[str], made: _Prepared) -> None:
        program.before(key)
        outputs = run_apart(program, key, marks)  # compiles and loads kernels, and chooses algorithms: no capture may
        self._platform.current_stream().synchronize()
        captured = made.keys[key] = _Captured(outputs=[self._places(kept, outputs) for kept in made.sets])
        del outputs
        for places in captured.outputs:

            def finish(outputs: Outputs, places: Mapping[str, Tensor] = places) -> None:
                for name, one in outputs.items():
                    places[name].copy_(one)

            captured.pieces.append(Pieces(program, key))
            capture(self._graphs, self._pool, captured.pieces[-1], marks, finish)

    def _places(self, kept: dict[str, Tensor], outputs: Outputs) -> dict[str, Tensor]:
        """Room for such outputs in a set, which grows if the largest key has not the most of each."""
        for name, one in outputs.items():
            if name not in kept or len(kept[name]) < len(one):
                kept[name] = self._platform.allocate("graphs", one.shape, one.dtype)
        return {name: kept[name][: len(one)] for name, one in outputs.items()}

    def _about(self, key: StepKey, error: Exception) -> SrtError:
        """The error that the contract promises, naming the key."""
        cause = error.cause if isinstance(error, SrtError) else f"{type(error).__name__}: {error}"
        text = f"cannot capture {key}: {cause}"
        if isinstance(error, OutOfMemory) or type(error).__name__ == "OutOfMemoryError":  # torch's own
            remedy = f"set max_rows and max_tokens of {self._part}, or lower memory.fraction"
            return OutOfMemory(self._part, text, remedy)
        if isinstance(error, EngineError):
            return EngineError(self._part, text, error.remedy)
        return Unsupported(self._part, text, error.remedy if isinstance(error, SrtError) else "name another runner")
