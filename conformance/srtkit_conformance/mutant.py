"""A mutant: a plugin with one fault, and the checks that must find it. A variant: different but legal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """`make` takes the descriptor of the plugin `of` and returns one with the fault.

    `killed_by` are ids of checks; the first is its named killer and must fail in every fixed seed.
    A legal variant has no `killed_by`, and every check must pass on it. `note` says why another mutant
    may be killed by the same set of checks.
    """

    id: str
    of: str
    sentence: str
    make: Callable[[Any], Any]
    killed_by: tuple[str, ...] = ()
    note: str = ""

    @property
    def legal(self) -> bool:
        """Whether it is a variant that must pass."""
        return not self.killed_by


Make = Callable[[Any], Any]
Made = Callable[[Make], Mutant]


def mutant(id_: str, *, of: str, sentence: str, killed_by: tuple[str, ...], note: str = "") -> Made:
    """Turn a function over the reference's descriptor into a `Mutant`."""

    def made(make: Make) -> Mutant:
        return Mutant(id_, of, sentence, make, killed_by, note)

    return made


def variant(id_: str, *, of: str, sentence: str) -> Made:
    """Turn a function over the reference's descriptor into a legal variant."""

    def made(make: Make) -> Mutant:
        return Mutant(id_, of, sentence, make)

    return made


def mutants_of(module: ModuleType) -> tuple[Mutant, ...]:
    """The mutants and variants a module defines."""
    return tuple(value for value in vars(module).values() if isinstance(value, Mutant))
