"""Whole steps as one graph: `graph_runner:cuda-full`, the descriptor. Imports no torch; `build` imports the runner."""

from __future__ import annotations

from srtkit.spec.capabilities import No
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, GraphRunnerCapabilities, GraphRunnerDescriptor
from srtkit.spec.hookspecs import hookimpl
from srtkit_plugin_graph_cuda.steps import Options, fit, keys, levels, memory

PART = "graph_runner:cuda-full"


def capabilities(facts: DeviceFacts) -> GraphRunnerCapabilities:
    """One graph a step: what attention can record, and nothing that waits."""
    one = "a step is one graph"
    return GraphRunnerCapabilities(No(f"{one}, which cannot wait inside"), No(one), levels(facts))


def build(build: GraphRunnerBuild) -> GraphRunner:
    """The runner. Raises `Unsupported` on a platform without graphs."""
    from srtkit_plugin_graph_cuda.runner import CapturingRunner

    return CapturingRunner(PART, build, cuts=False, gates=False)


@hookimpl
def srtkit_graph_runner() -> GraphRunnerDescriptor:
    """Offers `graph_runner:cuda-full`."""
    return GraphRunnerDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, keys=keys, fit=fit, memory=memory, build=build
    )
