"""The runner. It runs each step eagerly, at the padded shape that `fit` chose, and records nothing.

A runner that records does so in `prepare`, through `Platform.graphs`, and replays in `run`. Knows no
attention and no model: a program is all it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from srtkit.spec.errors import SrtError, Unsupported
from srtkit.spec.graph_runner import GraphRunner, Program
from srtkit.spec.step_plan import StepKey

if TYPE_CHECKING:
    from torch import Tensor

PART = "graph_runner:my-plugin"


@final
class MyPluginRunner(GraphRunner):
    """Remembers which keys were prepared for which program, and runs those only."""

    def __init__(self) -> None:
        self._prepared: dict[Program, set[StepKey]] = {}

    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        """Run every key once, largest first, and add it. To record, run the body under capture.

        Raises `Unsupported` naming the key that fails; none of `keys` is added then. So for a program with operators at
        which the host decides: no graph may hold one, and this runner ends none there (`gates` is unset, which is no).
        """
        if program.gates():
            raise Unsupported(PART, f"a step that waits at {', '.join(sorted(program.gates()))} is no single graph")
        for key in sorted(keys, key=lambda key: (key.tokens, key.rows), reverse=True):
            try:
                program.before(key)
                program.body(key)
            except SrtError:
                raise
            except Exception as error:  # a program may raise anything; the server falls back to another runner
                raise Unsupported(PART, f"{key} cannot be prepared: {type(error).__name__}: {error}") from error
        self._prepared.setdefault(program, set()).update(keys)

    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        """Host work, then device work. Raises `Unsupported` for a key that was not prepared."""
        if key not in self._prepared.get(program, ()):
            raise Unsupported(PART, f"{key} was not prepared")
        program.before(key)
        return program.body(key)

    def close(self) -> None:
        """Forget the keys."""
        self._prepared.clear()
