"""Steps cut where the host decides: `graph_runner:cuda-breakable`, the descriptor. Imports no torch; `build` does."""

from __future__ import annotations

from srtkit.spec.capabilities import YES, No
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, GraphRunnerCapabilities, GraphRunnerDescriptor
from srtkit.spec.hookspecs import hookimpl
from srtkit_plugin_graph_cuda.steps import Options, fit, keys, levels, memory

PART = "graph_runner:cuda-breakable"


def capabilities(facts: DeviceFacts) -> GraphRunnerCapabilities:
    """A graph ends where the host waits or decides, and another goes on; attention is recorded as it allows."""
    return GraphRunnerCapabilities(gates=YES, cuts=No("only gates are outside its graphs"), levels=levels(facts))


def build(build: GraphRunnerBuild) -> GraphRunner:
    """The runner. Raises `Unsupported` on a platform without graphs."""
    from srtkit_plugin_graph_cuda.runner import CapturingRunner

    return CapturingRunner(PART, build, cuts=False, gates=True)


@hookimpl
def srtkit_graph_runner() -> GraphRunnerDescriptor:
    """Offers `graph_runner:cuda-breakable`."""
    return GraphRunnerDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, keys=keys, fit=fit, memory=memory, build=build
    )
