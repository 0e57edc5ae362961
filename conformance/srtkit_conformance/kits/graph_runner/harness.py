"""The runner under test over a platform, with the keys that it would capture. Knows the contract only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import get_args

import torch

from srtkit.spec.errors import SrtError, Unsupported
from srtkit.spec.graph_runner import CaptureLevel, GraphRunner, GraphRunnerBuild, GraphRunnerDescriptor, Program
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.check import Failed, Refused
from srtkit_conformance.kits.graph_runner.program import Ledger, compare
from srtkit_conformance.kits.graph_runner.steps import LIMITS, Fill
from srtkit_conformance.target import Target

LEVELS: tuple[CaptureLevel, ...] = get_args(CaptureLevel)
"""From nothing to anything."""
NOTHING = Refused("it captures nothing here")


@dataclass
class Harness:
    """`keys` are those of the highest level that the runner declares; () when it captures nothing."""

    target: Target
    platform: Platform
    runner: GraphRunner
    keys: tuple[StepKey, ...]
    _programs: int = 0

    def program(self, chain: int = 0, marks: int = 1, gate: bool = False) -> Ledger:
        """A new program with weights of its own."""
        self._programs += 1
        return Ledger(self.platform, self.target.rng(f"program {self._programs}"), chain, marks, gate)

    def prepared(self) -> Ledger:
        """A new program, captured at all keys."""
        program = self.program()
        self.capture(program, self.keys)
        return program

    def capture(self, program: Ledger, keys: Sequence[StepKey]) -> None:
        """Have the runner capture, over padding rows."""
        program.fill = None
        self.runner.prepare(program, keys)

    def fit(self, wanted: StepKey) -> StepKey | None:
        """The key that a step runs at, None when another runner must."""
        descriptor: GraphRunnerDescriptor = self.target.descriptor
        return descriptor.fit(wanted, self.keys)

    def shapes(self) -> tuple[StepKey, ...]:
        """What to run: the captured keys, or any."""
        return self.keys or (StepKey(8, 8, 1), StepKey(3, 3, 1), StepKey(4, 20))

    def step(self, program: Ledger, fill: Fill, what: str) -> float:
        """Run a fill where it fits and compare; the difference. A fill that fits nowhere is no step."""
        key = self.fit(fill.wanted())
        if key is None:
            return 0.0
        program.fill = fill
        outputs = self.runner.run(program, key)
        return compare(outputs, program.reference.run(fill), f"{what} at {key}")

    def free(self) -> int:
        """Bytes of the device that are free, once it has nothing to do."""
        self.platform.current_stream().synchronize()
        return self.platform.memory(self.target.device_index).free


@contextmanager
def opened(target: Target, depth: int = 0) -> Iterator[Harness]:
    """A harness under inference mode, as the engine runs; closed at the end."""
    descriptor: GraphRunnerDescriptor = target.descriptor
    limits = replace(LIMITS, depth=depth)
    levels = descriptor.capabilities(target.facts).levels
    highest = max(levels, key=LEVELS.index)
    keys = tuple(descriptor.keys(limits, highest, target.options))
    platform = target.platform()
    try:
        with torch.inference_mode():
            runner = descriptor.build(GraphRunnerBuild(limits, platform, target.device_index, target.options))
            yield Harness(target, platform, runner, keys)
            runner.close()
    finally:
        platform.close()


def refused(runner: GraphRunner, program: Program, key: StepKey, what: str) -> None:
    """Raise `Failed` unless running this key is refused with `Unsupported`."""
    try:
        runner.run(program, key)
    except Unsupported:
        return
    except SrtError as error:
        raise Failed(f"{what} raised another error", observed=repr(error), limit="Unsupported") from error
    raise Failed(f"{what} was run", observed=key, limit="Unsupported")
