"""One step cut into groups of rows that are computed together. Knows lengths, slots and snapshots, and no layer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.recurrent import RecurrentPlan, Snapshots


@dataclass(frozen=True)
class Cut:
    """A place inside rows where the state is wanted: after `offset` tokens.

    The states of group members `members` int64 [m] go to slots `targets` int64 [m]; with `kept` all are kept, too.
    """

    offset: int
    members: Tensor
    targets: Tensor
    kept: bool


@dataclass(frozen=True)
class Group:
    """Rows of equal length, wanted at equal places. int64: `rows` [b], `tokens` [b, n], `slots` [b].

    The last of `cuts` is the end of the rows, whether anything is wanted there or not.
    """

    rows: Tensor
    tokens: Tensor
    slots: Tensor
    cuts: tuple[Cut, ...]


@dataclass(frozen=True)
class Kept:
    """States of a group's members in one layer after 1, 2, … tokens: conv [k, b, …] and state [k, b, …]."""

    group: Group
    conv: Tensor
    state: Tensor


@dataclass
class TorchPlan(RecurrentPlan):
    """The step filled in last. `padding` int64: tokens of padding rows. `kept` by layer index, None without `keep`."""

    groups: list[Group] = field(default_factory=list)
    padding: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    kept: dict[int, list[Kept]] | None = None

    def close(self) -> None:
        """Forget the step."""
        self.groups, self.kept = [], None


def cut_step(plan: TorchPlan, batch: Batch, state_slots: Tensor, snapshots: Snapshots | None, keep: int) -> None:
    """Fill `plan` with the step. Reads the slots on the host: on a device of its own that waits for it."""
    device = state_slots.device
    slots, lengths = state_slots.tolist(), batch.host_q.tolist()
    first = [0, *batch.host_q.cumsum().tolist()]
    wanted: dict[int, dict[int, int]] = defaultdict(dict)  # row → offset → target slot
    if snapshots is not None:
        for row, offset, target in zip(*(one.tolist() for one in vars(snapshots).values()), strict=True):
            wanted[row][offset] = target

    alike: dict[tuple[int, int, tuple[int, ...]], list[int]] = defaultdict(list)
    for row, (slot, n) in enumerate(zip(slots, lengths, strict=True)):
        if slot and n:
            kept = min(keep, n) if row < batch.leading else 0
            alike[n, kept, tuple(sorted({*wanted[row], *range(1, kept + 1), n}))].append(row)

    def int64(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    plan.kept = {} if keep else None
    plan.groups = []
    for (n, kept, offsets), rows in alike.items():
        cuts = []
        for offset in offsets:
            members = [i for i, row in enumerate(rows) if offset in wanted[row]]
            targets = [wanted[rows[i]][offset] for i in members]
            cuts.append(Cut(offset, int64(members), int64(targets), offset <= kept))
        starts = int64([first[row] for row in rows])
        tokens = starts.unsqueeze(1) + torch.arange(n, device=device)
        plan.groups.append(Group(int64(rows), tokens, int64([slots[row] for row in rows]), tuple(cuts)))
    padding = [range(first[row], first[row + 1]) for row, slot in enumerate(slots) if not slot]
    plan.padding = int64([token for tokens in padding for token in tokens])
