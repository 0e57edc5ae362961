"""Runs a program's host work and then its body. Keeps nothing between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from srtkit.spec.errors import Unsupported
from srtkit.spec.graph_runner import GraphRunner, Program
from srtkit.spec.step_plan import StepKey

if TYPE_CHECKING:
    from torch import Tensor


class EagerRunner(GraphRunner):
    """Every step as it comes. Outputs are the body's own, so they stay valid as long as the program keeps them."""

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        """Nothing to capture. Raises `Unsupported` when asked to."""
        if keys:
            raise Unsupported("graph_runner:eager", "captures no graphs", "pass the keys that its descriptor lists")

    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        """`before`, then `body`, at exactly this key."""
        program.before(key)
        return program.body(key)

    def close(self) -> None:
        """Nothing to free; `prepare` and `run` may follow."""
