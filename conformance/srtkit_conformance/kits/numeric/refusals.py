"""Asking for what a plugin declares as a no. Knows no kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from srtkit.spec.errors import SrtError, Unsupported
from srtkit_conformance.check import Failed, Informational, Outcome, Refused


def refusal(attempt: Callable[[], Outcome], what: str) -> Outcome:
    """The outcome of asking for what is declared as a no: it must be refused, or at least be right.

    `attempt` asks and then runs, raising `Failed` for wrong numbers.
    """
    try:
        attempt()
    except Unsupported as error:
        if not error.part or not error.cause:
            raise Failed(f"{what}: the refusal names no part or no cause") from error
        return Refused(f"{what}: {error.cause}")
    except Failed as error:
        raise Failed(f"{what}: not declared, not refused, and wrong: {error.message}") from error
    except SrtError as error:
        raise Failed(f"{what}: refused with {type(error).__name__}, not Unsupported: {error}") from error
    except (AssertionError, RuntimeError, TypeError, ValueError, KeyError, IndexError, NotImplementedError) as error:
        raise Failed(f"{what}: not declared, not refused, and fails with {error!r}") from error
    return Informational(f"{what}: works although it is declared as a no")


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """For a check that asks for noes only: all refused is a pass; what works all the same is told."""
    told = [one.message for one in outcomes if isinstance(one, Informational)]
    if told:
        return Informational("; ".join(told))
    return {"refused": "; ".join(one.reason for one in outcomes if isinstance(one, Refused))}
