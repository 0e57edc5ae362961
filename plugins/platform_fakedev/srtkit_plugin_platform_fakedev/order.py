"""Which uses of memory are ordered: clocks of streams and of the host, and who has used what.

A clock says for each stream how many of its tasks are known to come before. Knows no tensors and no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from srtkit.spec.errors import EngineError
from srtkit_plugin_platform_fakedev.faults import PART, RaceFound

Clock = dict[int, int]
"""Stream number → number of its last task that comes before."""


def join(clock: Clock, other: Clock) -> None:
    """Everything that comes before `other` comes before `clock` too. Mutates `clock`."""
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


@dataclass(frozen=True)
class Use:
    """Task `number` of a stream reads or writes the bytes [start, stop) of some memory."""

    stream: int
    number: int
    start: int
    stop: int
    writes: bool
    task: str

    def conflicts(self, start: int, stop: int, writes: bool) -> bool:
        """Whether the order of the two matters."""
        return (self.writes or writes) and self.start < stop and start < self.stop


@dataclass
class History:
    """The uses of one piece of memory that may still matter. `gone` says why it may not be used at all."""

    uses: list[Use] = field(default_factory=list)
    gone: str = ""

    def check(self, who: str, span: tuple[int, int], writes: bool, clock: Clock) -> None:
        """Raise `RaceFound` unless every use that conflicts comes before `clock`."""
        if self.gone:
            raise EngineError(PART, f"{who} uses memory of {self.gone}", "restore the arena first")
        for use in self.uses:
            if use.number > clock.get(use.stream, 0) and use.conflicts(*span, writes):
                raise RaceFound(
                    f"{who} {'writes' if writes else 'reads'} memory that task {use.number} of stream {use.stream} "
                    f"({use.task}) {'writes' if use.writes else 'reads'}, and nothing orders the two"
                )

    def note(self, new: Use) -> None:
        """Remember a use. Earlier ones of its stream that it covers say nothing more."""
        self.uses = [use for use in self.uses if not _covers(new, use)]
        self.uses.append(new)


def _covers(new: Use, old: Use) -> bool:
    inside = new.start <= old.start and old.stop <= new.stop
    return new.stream == old.stream and inside and (new.writes or not old.writes)
