"""Legal runners: another structure, other keys, no keys of mixed steps, outputs of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, GraphRunnerDescriptor, Program
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.graph_runner.capturing import WrappedRunner
from srtkit_conformance.mutants.graph_runner.simple import SimpleRunner, simple

if TYPE_CHECKING:
    from torch import Tensor


class LargeRing(SimpleRunner):
    def ring_size(self) -> int:
        return super().ring_size() + 3


simple_runner = variant("graph_runner.simple", of="cuda-full", sentence="Another runner, that keeps more outputs.")(
    simple(LargeRing)
)


@variant(
    "graph_runner.every_row_count", of="cuda-full", sentence="A key for each number of rows, none for mixed steps."
)
def every_row_count(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    return replace(
        descriptor,
        keys=lambda limits, level, options: (
            [] if level == "never" else [StepKey(rows, rows, 1) for rows in range(1, min(8, limits.max_rows) + 1)]
        ),
        fit=lambda wanted, keys: wanted if wanted in keys else None,
    )


class CopiesOutputs(WrappedRunner):
    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        return {name: one.clone() for name, one in self.inner.run(program, key).items()}


@variant("graph_runner.copies_outputs", of="eager", sentence="Runs eagerly, and copies the outputs.")
def copies_outputs(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    def build(request: GraphRunnerBuild) -> GraphRunner:
        return CopiesOutputs(descriptor.build(request))

    return replace(descriptor, build=build)
