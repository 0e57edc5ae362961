"""A program's body as graphs and the calls between them. Knows marks by name only, and the platform contract.

While the body runs under capture, each call of a marked operator ends a graph and begins the next. The call is not
made then: what it would read has not been computed. It is made in every replay, on the tensors it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from srtkit.spec.errors import Unsupported
from srtkit.spec.graph_runner import Program
from srtkit.spec.platform import GraphHandle, GraphPrimitives
from srtkit.spec.step_plan import StepKey

Call = tuple[OpOverload, Sequence[Any]]
Outputs = Mapping[str, Tensor]


class Marked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands calls of the operators named `marks` to `at`, and lets all others through."""

    def __init__(self, marks: frozenset[str], at: Callable[[OpOverload, Sequence[Any]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._marks, self._at = marks, at

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Raises `Unsupported` for a marked operator that has not the form the contract wants."""
        schema = func._schema
        if schema.name not in self._marks:
            return func(*args, **(kwargs or {}))
        if kwargs or schema.returns:
            raise Unsupported(schema.name, "is marked, but returns something or is called with names of arguments")
        return self._at(func, args)


@dataclass
class Pieces:
    """A captured body: one graph more than calls between them."""

    program: Program
    key: StepKey
    graphs: list[GraphHandle] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def replay(self) -> None:
        """Launch it all, in order, on the current stream."""
        first, *others = self.graphs
        first.replay()
        for (operator, args), graph in zip(self.calls, others, strict=True):
            self.program.outside(self.key, operator, args)
            graph.replay()

    def close(self) -> None:
        """Free the graphs."""
        for graph in self.graphs:
            graph.close()
        self.graphs.clear()
        self.calls.clear()


def run_apart(program: Program, key: StepKey, marks: frozenset[str]) -> Outputs:
    """The body, uncaptured, with marked operators called as a replay calls them."""
    if not marks:
        return program.body(key)
    with Marked(marks, lambda operator, args: program.outside(key, operator, args)):
        return program.body(key)


def capture(
    graphs: GraphPrimitives, pool: object, made: Pieces, marks: frozenset[str], finish: Callable[[Outputs], None]
) -> None:
    """Capture the body into `made`, with `finish(outputs)` at its end. After an error nothing is being recorded."""

    def cut(operator: OpOverload, args: Sequence[Any]) -> None:
        made.graphs.append(graphs.end())
        made.calls.append((operator, [_alias(graphs, one) for one in args]))
        graphs.begin(pool)

    graphs.begin(pool)
    try:
        with Marked(marks, cut) if marks else nullcontext():
            outputs = made.program.body(made.key)
        finish(outputs)
        made.graphs.append(graphs.end())
    except BaseException:
        graphs.abandon()
        raise


def _alias(graphs: GraphPrimitives, given: Any) -> Any:
    """An argument without what would keep its memory from later graphs."""
    if isinstance(given, list | tuple):
        return [_alias(graphs, one) for one in given]
    return graphs.alias(given) if isinstance(given, Tensor) else given
