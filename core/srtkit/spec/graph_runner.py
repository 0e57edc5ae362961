"""The graph runner contract, `graph_runner/1.0`: which shapes are captured, and running them.

A runner executes programs and knows nothing of attention, sampling or models: a program is a callable
over buffers at fixed addresses, and marks inside it (custom operators named as cuts) tell where it may
be split. The planner asks `fit`, so every rank runs the same key; None means the next runner, eager last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from srtkit.spec.capabilities import NOT_DECLARED, Answer, Descriptor
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.step_plan import StepKey

if TYPE_CHECKING:
    from torch import Tensor

    from srtkit.spec.platform import Platform

CaptureLevel = Literal["never", "one_token", "uniform", "any"]


class Program(ABC):
    """Something to run per step: target, draft, encoder … Its buffers are its own, sized for a key."""

    @abstractmethod
    def before(self, key: StepKey) -> None:
        """Host work outside any graph (attention fill). Called before every run and before capture."""

    @abstractmethod
    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        """The device work, recordable where the parts allow it. Returns outputs by name."""

    @abstractmethod
    def cuts(self) -> frozenset[str]:
        """Names of custom operators at which the body may be split ("srtkit::attend").

        Such an operator is called with positional arguments, returns nothing, and changes only arguments.
        """

    def gates(self) -> frozenset[str]:
        """Names of operators of that form at which the host waits or decides: no graph may hold one."""
        return frozenset()

    def outside(self, key: StepKey, operator: Callable[..., None], args: Sequence[Any]) -> None:
        """Run such an operator between two graphs, on the tensors it had when they were recorded."""
        operator(*args)


class GraphRunner(ABC):
    """Runs prepared programs. Outputs of a run stay valid for `depth` further runs."""

    @abstractmethod
    def prepare(self, program: Program, keys: Sequence[StepKey]) -> None:
        """Capture `keys`, largest first. May be called again after `close`.

        Raises `OutOfMemory` or `Unsupported` naming key and cause; the device stays usable.
        """

    @abstractmethod
    def run(self, program: Program, key: StepKey) -> Mapping[str, Tensor]:
        """Run one step; the result equals the eager one for every fill below the key.

        A captured step allocates no device memory, and the host does not wait for it. `Unsupported` for a key
        that was not prepared, except from a runner that captures nothing, which takes any.
        """

    @abstractmethod
    def close(self) -> None:
        """Free graphs and their memory."""


@dataclass(frozen=True)
class GraphRunnerCapabilities:
    """What a runner can do. `gates` no: it cannot run a program with gates. `cuts` no: it records the operators of
    `Program.cuts` with all else, so that attention decides what it may capture; yes: it runs them outside its graphs.
    """

    gates: Answer = NOT_DECLARED
    cuts: Answer = NOT_DECLARED
    levels: frozenset[CaptureLevel] = frozenset({"never"})


@dataclass(frozen=True)
class GraphRunnerBuild:
    """What core gives a runner at build."""

    limits: Limits
    platform: Platform
    device_index: int
    options: BaseModel
    needs: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class GraphRunnerDescriptor(Descriptor):
    """What a plugin's hook returns; `keys`, `fit` and `memory` are pure and torch-free.

    `keys(limits, level, options)`: what would be captured when the parts allow `level`: nothing at "never", rows
    of one token at "one_token", rows of equal length at "uniform", at "any" mixed steps too (q_len 0), which may have
    a row more than `limits.max_rows`, for padding.
    `fit(wanted, keys)`: the captured key that serves `wanted` (rows, tokens, q_len unpadded), or None. It has the same
    q_len and flags, and room. Padding rows have q_len tokens each; in a mixed step the last one has all tokens that
    are over, the others none. A runner that captures nothing answers `wanted`.
    `memory(keys, row_bytes, token_bytes)`: estimate in bytes, for the memory plan; a row's outputs take `row_bytes`, a
    token `token_bytes` while the step runs.
    """

    capabilities: Callable[[DeviceFacts], GraphRunnerCapabilities]
    keys: Callable[[Limits, CaptureLevel, BaseModel], Sequence[StepKey]]
    fit: Callable[[StepKey, Sequence[StepKey]], StepKey | None]
    memory: Callable[[Sequence[StepKey], int, int], int]
    build: Callable[[GraphRunnerBuild], GraphRunner]
