"""Decode steps as CUDA graphs: `graph_runner:cuda-full`, the descriptor. Imports no torch; `build` imports the runner.

Rows are captured in buckets that lie closer to each other than powers of two: a padding row costs what a row costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import No
from srtkit.spec.errors import Unsupported
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

PART = "graph_runner:cuda-full"
DEVICES = frozenset({"cuda", "rocm"})
FEW = (1, 2, 4)
NEAR, FAR = 8, 16
"""Distance of buckets, in rows, up to 64 rows and beyond."""


class Options(BaseModel):
    """`[graph_runner.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_rows: int = Field(256, ge=1, description="the largest decode step that is captured")


def capabilities(facts: DeviceFacts) -> GraphRunnerCapabilities:
    """Decode steps, whole."""
    gates = No("a step is one graph, which cannot wait inside")
    if facts.platform not in DEVICES or not facts.graphs:
        return GraphRunnerCapabilities(gates=gates)
    return GraphRunnerCapabilities(gates=gates, levels=frozenset({"one_token", "uniform"}))


def keys(limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
    """Decode steps, from the level "one_token" on."""
    assert isinstance(options, Options)
    if level == "never":
        return ()
    largest = min(limits.max_rows, options.max_rows)
    buckets = {*FEW, *range(NEAR, 65, NEAR), *range(64, largest, FAR)}
    return [StepKey(rows, rows, q_len=1) for rows in sorted({rows for rows in buckets if rows < largest} | {largest})]


def fit(wanted: StepKey, keys: Sequence[StepKey]) -> StepKey | None:
    """The smallest bucket of the same kind with room."""
    room = [key for key in keys if (key.q_len, key.flags) == (wanted.q_len, wanted.flags) and key.rows >= wanted.rows]
    return min(room, key=lambda key: key.rows, default=None)


def memory(keys: Sequence[StepKey], token_bytes: int) -> int:
    """Two sets of outputs of the largest key, as with one step in flight, and as much again for what is between."""
    return 3 * max((key.tokens for key in keys), default=0) * token_bytes


def build(build: GraphRunnerBuild) -> GraphRunner:
    """The runner. Raises `Unsupported` on a platform without graphs."""
    from srtkit_plugin_graph_cuda_full.runner import CudaFullRunner

    graphs = build.platform.graphs()
    if graphs is None:
        raise Unsupported(PART, "this platform captures no graphs", "name another runner")
    return CudaFullRunner(build.platform, graphs, build.limits.depth + 1)


@hookimpl
def srtkit_graph_runner() -> GraphRunnerDescriptor:
    """Offers `graph_runner:cuda-full`."""
    return GraphRunnerDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, keys=keys, fit=fit, memory=memory, build=build
    )
