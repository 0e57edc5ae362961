"""Steps in pieces: `graph_runner:cuda-piecewise`, the descriptor. Imports no torch; `build` imports the runner."""

from __future__ import annotations

from srtkit.spec.capabilities import YES
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, GraphRunnerCapabilities, GraphRunnerDescriptor
from srtkit.spec.hookspecs import hookimpl
from srtkit_plugin_graph_cuda.steps import Options, fit, keys, levels, memory

PART = "graph_runner:cuda-piecewise"


def capabilities(facts: DeviceFacts) -> GraphRunnerCapabilities:
    """Attention and whatever else a program marks stay outside, and may do as they like: every step is captured."""
    return GraphRunnerCapabilities(gates=YES, cuts=YES, levels=levels(facts))


def build(build: GraphRunnerBuild) -> GraphRunner:
    """The runner. Raises `Unsupported` on a platform without graphs."""
    from srtkit_plugin_graph_cuda.runner import CapturingRunner

    return CapturingRunner(PART, build, cuts=True, gates=True)


@hookimpl
def srtkit_graph_runner() -> GraphRunnerDescriptor:
    """Offers `graph_runner:cuda-piecewise`."""
    return GraphRunnerDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, keys=keys, fit=fit, memory=memory, build=build
    )
