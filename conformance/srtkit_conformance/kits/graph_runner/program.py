"""A program with state at fixed addresses, and the same in numpy: what a runner must not change.

Each row's tokens are embedded, mixed, summed and added to the state of the row's slot, as KV pages grow. Memory
beyond the key holds invalid ids, so a run at a larger key than it was told shows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.graph_runner import Program
from srtkit.spec.platform import Event, Platform
from srtkit.spec.step_plan import Ints, StepKey
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.graph_runner.steps import LIMITS, VOCABULARY, Fill, padded, padding

WIDTH = 16
INVALID = -7
RING = 16
TOLERANCE = 1e-4
COLUMNS = ("ids", "row_of_token", "slots")
MARK = "srtkit_conformance::scale"

_library = torch.library.Library("srtkit_conformance", "DEF")  # type: ignore[no-untyped-call]
_library.define("scale(Tensor x, Tensor host, Tensor(a!) out) -> ()")  # type: ignore[no-untyped-call]


def _scale(x: Tensor, host: Tensor, out: Tensor) -> None:
    """out = x times what the host memory holds when this is called, which is counted there."""
    host[1] += 1
    torch.mul(x, float(host[0]), out=out)


_library.impl("scale", _scale, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


Outputs = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]
"""Expected outputs, without padding."""


class Ledger(Program):
    """Outputs: "hidden" float32 [tokens, WIDTH], "rows" float32 [rows, WIDTH], the state after the step.

    `fill` is the next step, None for padding. `chain`: further operators that change nothing. `log` keeps the
    calls in order. `marks` calls of the operator `MARK` are in its middle, which a runner may cut at; `gate`: must.
    """

    def __init__(
        self, platform: Platform, rng: np.random.Generator, chain: int = 0, marks: int = 1, gate: bool = False
    ) -> None:
        words = LIMITS.max_tokens
        self._host = [platform.host_buffer((len(COLUMNS), words), torch.int32) for _ in range(RING)]
        self._copied: list[Event] = [platform.new_event() for _ in range(RING)]
        self._block = platform.allocate("workspace", (len(COLUMNS), words), torch.int32)
        self._table = platform.allocate("weights", (VOCABULARY, WIDTH), torch.float32)
        self._weight = platform.allocate("weights", (WIDTH, WIDTH), torch.float32)
        self.state = platform.allocate("kv", (LIMITS.max_rows + 1, WIDTH), torch.float32)
        self.reference = Reference(rng)
        self._table.copy_(torch.from_numpy(self.reference.table).float())
        self.change_weight(self.reference.weight)
        self.fill: Fill | None = None
        self.log: list[tuple[str, StepKey]] = []
        self._chain, self._turn = chain, 0
        self._marks, self._gate = marks, gate
        self._decision = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def change_weight(self, weight: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        """Another weight, at the same address."""
        self.reference.weight = weight
        self._weight.copy_(torch.from_numpy(weight).float())

    def decide(self, factor: float) -> None:
        """What each mark multiplies by, from now on."""
        self._decision[0] = self.reference.factor = factor
        self.reference.marks = self._marks

    @property
    def calls(self) -> int:
        """How often a mark was called by the host."""
        return int(self._decision[1])

    def before(self, key: StepKey) -> None:
        """Upload the fill, padded to the key."""
        self.log.append(("before", key))
        fill = padding(key) if self.fill is None else padded(self.fill, key)
        self._turn = (self._turn + 1) % RING
        self._copied[self._turn].synchronize(10.0)
        block: Ints = self._host[self._turn].numpy()
        block[:] = INVALID
        block[0, : key.tokens] = fill.ids
        block[1, : key.tokens] = np.repeat(np.arange(key.rows), fill.n_query)
        block[2, : key.rows] = fill.slots
        self._block.copy_(self._host[self._turn], non_blocking=True)
        self._copied[self._turn] = _recorded(self._copied[self._turn])

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        """The device work."""
        self.log.append(("body", key))
        ids, row_of_token = self._block[0, : key.tokens], self._block[1, : key.tokens]
        slots = self._block[2, : key.rows]
        hidden = torch.tanh(self._table.index_select(0, ids) @ self._weight)
        for _ in range(self._chain):
            hidden = hidden + 0
        for _ in range(self._marks):
            scaled = torch.empty_like(hidden)
            torch.ops.srtkit_conformance.scale(hidden, self._decision, scaled)
            hidden = scaled
        sums = hidden.new_zeros(key.rows, WIDTH).index_add_(0, row_of_token, hidden)
        self.state.index_add_(0, slots, sums)
        return {"hidden": hidden, "rows": self.state.index_select(0, slots)}

    def cuts(self) -> frozenset[str]:
        """The marks, if a runner may choose."""
        return frozenset({MARK} if self._marks and not self._gate else ())

    def gates(self) -> frozenset[str]:
        """The marks, if it may not."""
        return frozenset({MARK} if self._marks and self._gate else ())


def _recorded(event: Event) -> Event:
    event.record()
    return event


class Reference:
    """The same in float64."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.table = rng.standard_normal((VOCABULARY, WIDTH))
        self.weight = rng.standard_normal((WIDTH, WIDTH)) / 4
        self.state = np.zeros((LIMITS.max_rows + 1, WIDTH))
        self.factor, self.marks = 1.0, 1

    def run(self, fill: Fill) -> Outputs:
        """The outputs of a step, without padding."""
        hidden = np.tanh(self.table[fill.ids] @ self.weight) * self.factor**self.marks
        slots = np.array(fill.slots)
        np.add.at(self.state, slots[np.repeat(np.arange(len(slots)), fill.n_query)], hidden)
        return {"hidden": hidden, "rows": self.state[slots].copy()}


def compare(outputs: Mapping[str, Tensor], expected: Outputs, what: str) -> float:
    """The largest difference, over the rows and tokens without padding. Raises `Failed` above `TOLERANCE`."""
    if outputs.keys() != expected.keys():
        raise Failed(f"{what}: the outputs have other names", observed=sorted(outputs), limit=sorted(expected))
    worst = 0.0
    for name, gold in expected.items():
        found = outputs[name][: len(gold)].cpu().numpy()
        difference = np.abs(found - gold).max(initial=0.0)
        worst = max(worst, float("inf") if np.isnan(difference) else float(difference))
        if not worst <= TOLERANCE:
            raise Failed(f'{what}: "{name}" differs from the eager result', observed=worst, limit=TOLERANCE)
    return worst
