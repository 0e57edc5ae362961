"""Graph runner `my-plugin`: the descriptor. Data and pure functions; `build` imports the runner.

Decode steps run at a few row counts, powers of two; the smallest that is large enough serves a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, PositiveInt

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


class Options(BaseModel):
    """The table `[graph_runner.options.my-plugin]`; a key that is not here is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_rows: PositiveInt = 64
    """Decode steps with more rows are left to the next runner."""


def capabilities(facts: DeviceFacts) -> GraphRunnerCapabilities:
    """One-token steps. It cannot wait inside a step, and says so by leaving `gates` unset."""
    return GraphRunnerCapabilities(levels=frozenset({"one_token"}))


def keys(limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
    """One key for each power of two up to the rows of this run; none where a part cannot be captured."""
    assert isinstance(options, Options)
    if level == "never":
        return ()
    most = min(limits.max_rows, options.max_rows)
    return [StepKey(rows=1 << n, tokens=1 << n, q_len=1) for n in range(most.bit_length())]


def fit(wanted: StepKey, keys: Sequence[StepKey]) -> StepKey | None:
    """The smallest key that holds a decode step; None for every other step."""
    if wanted.q_len != 1 or wanted.flags:
        return None
    return min((key for key in keys if key.rows >= wanted.rows), key=lambda key: key.rows, default=None)


def memory(keys: Sequence[StepKey], row_bytes: int, token_bytes: int) -> int:
    """0: nothing is recorded."""
    return 0


def build(given: GraphRunnerBuild) -> GraphRunner:
    """A runner without prepared programs."""
    from srtkit_plugin_graph_my_plugin.runner import MyPluginRunner

    return MyPluginRunner()


@hookimpl
def srtkit_graph_runner() -> GraphRunnerDescriptor:
    """Offers the runner `my-plugin`."""
    return GraphRunnerDescriptor(
        contract="1.0",
        options=Options,
        capabilities=capabilities,
        keys=keys,
        fit=fit,
        memory=memory,
        build=build,
    )
