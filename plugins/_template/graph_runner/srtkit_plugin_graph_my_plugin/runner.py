"""The runner. It runs each step eagerly, at the padded shape that `fit` chose, and records nothing.

A runner that records does so in `prepare`, through `Platform.graphs`, and replays in `run`. Knows no
attention and no model: a program is all it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from srtkit.spec.errors import EngineError
from srtkit.spec.graph_runner import GraphRunner, Program
from srtkit.spec.step_plan import StepKey

if TYPE_CHECKING:
    from torch import Tensor


@final
class MyPluginRunner(GraphRunner):
    """Remembers which keys were prepared for which program, and runs those only."""

    def __init__(self) -> None:
        self._prepared: dict[Program, frozenset[StepKey]] = {}

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        """Take the keys. To record: `program.before(key)`, then `program.body(key)` under capture."""
        self._prepared[program] = frozenset(keys)

    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        """Host work, then device work. Raises `EngineError` for a key that was not prepared."""
        if key not in self._prepared.get(program, frozenset()):
            raise EngineError("graph_runner:my-plugin", f"{key} was not prepared")
        program.before(key)
        return program.body(key)

    def close(self) -> None:
        """Forget the keys."""
        self._prepared.clear()
