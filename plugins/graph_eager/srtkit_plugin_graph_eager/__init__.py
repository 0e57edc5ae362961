"""Eager running: the descriptor. Imports no torch; `build` imports the runner.

Eager captures nothing and takes every step, so it stands last in the list of runners and `fit` never
says no.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from srtkit.spec.capabilities import YES, NoOptions
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import (
    CaptureLevel,
    GraphRunner,
    GraphRunnerBuild,
    GraphRunnerCapabilities,
    GraphRunnerDescriptor,
)
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.step_plan import StepKey


def capabilities(facts: DeviceFacts) -> GraphRunnerCapabilities:
    """Nothing is captured, and a step may wait at a gate since each operator is launched on its own."""
    return GraphRunnerCapabilities(gates=YES, levels=frozenset({"never"}))


def keys(limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
    """No captured shapes, whatever the parts allow."""
    return ()


def fit(wanted: StepKey, keys: Sequence[StepKey]) -> StepKey:
    """The shape as it is: no padding."""
    return wanted


def memory(keys: Sequence[StepKey], row_bytes: int, token_bytes: int) -> int:
    """No graphs, no memory."""
    return 0


def build(build: GraphRunnerBuild) -> GraphRunner:
    """The runner."""
    from srtkit_plugin_graph_eager.runner import EagerRunner

    return EagerRunner()


@hookimpl
def srtkit_graph_runner() -> GraphRunnerDescriptor:
    """Offers `graph_runner:eager`."""
    return GraphRunnerDescriptor(
        contract="1.0", options=NoOptions, capabilities=capabilities, keys=keys, fit=fit, memory=memory, build=build
    )
