"""Whole steps as graphs, on any platform that captures: the descriptor. Imports no torch; `build` imports the runner.

Rows are captured in powers of two, and in the largest number a step may have; mixed steps likewise in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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

PART = "graph_runner:full"


class Options(BaseModel):
    """`[graph_runner.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int = Field(256, ge=1, description="the largest step that is captured")


def capabilities(facts: DeviceFacts) -> GraphRunnerCapabilities:
    """A whole step is one graph: anything can be captured, and nothing can wait inside."""
    gates = No("a step is one graph, which cannot wait inside")
    if not facts.graphs:
        return GraphRunnerCapabilities(gates=gates)
    return GraphRunnerCapabilities(gates=gates, levels=frozenset({"one_token", "uniform", "any"}))


def keys(limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
    """Decode steps from the level "one_token" on, mixed steps with "any"."""
    assert isinstance(options, Options)
    if level == "never":
        return ()
    largest = min(limits.max_rows, options.max_tokens)
    decode = [StepKey(rows, rows, q_len=1) for rows in _ladder(1, largest)]
    if level != "any":
        return decode
    return decode + [
        StepKey(largest, tokens) for tokens in _ladder(largest, min(limits.max_tokens, options.max_tokens))
    ]


def fit(wanted: StepKey, keys: Sequence[StepKey]) -> StepKey | None:
    """The smallest captured step of the same kind with room for `wanted` and its padding rows."""
    room = [key for key in keys if _holds(key, wanted)]
    return min(room, key=lambda key: (key.tokens, key.rows), default=None)


def memory(keys: Sequence[StepKey], token_bytes: int) -> int:
    """Each graph has memory of its own."""
    return sum(key.tokens for key in keys) * token_bytes


def build(build: GraphRunnerBuild) -> GraphRunner:
    """The runner. Raises `Unsupported` on a platform without graphs."""
    from srtkit_plugin_graph_full.runner import FullGraphRunner

    graphs = build.platform.graphs()
    if graphs is None:
        raise Unsupported(PART, "this platform captures no graphs", "name another runner")
    return FullGraphRunner(build.platform, graphs, build.limits.depth)


@hookimpl
def srtkit_graph_runner() -> GraphRunnerDescriptor:
    """Offers `graph_runner:full`."""
    return GraphRunnerDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, keys=keys, fit=fit, memory=memory, build=build
    )


def _ladder(first: int, last: int) -> Iterator[int]:
    """first, 2 first, 4 first …, last."""
    while first < last:
        yield first
        first *= 2
    yield last


def _holds(key: StepKey, wanted: StepKey) -> bool:
    """Padding takes a token for each row, and surplus tokens need a padding row."""
    rows, tokens = key.rows - wanted.rows, key.tokens - wanted.tokens
    same = key.q_len == wanted.q_len and key.flags == wanted.flags
    return same and 0 <= rows <= tokens and (rows > 0 or tokens == 0)
