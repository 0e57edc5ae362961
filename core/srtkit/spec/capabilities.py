"""Answers and needs: how a plugin says what it can do. Data only; knows no kind.

A capability is `YES` or `No(reason)`; a field that is not set means no. Features are names for things
that change the result: a spec or a batch carries the set it uses, a plugin declares the set it
understands, and core compares the two before any step, so that a new feature never reaches an old plugin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from srtkit.spec.errors import Unsupported


@dataclass(frozen=True)
class Yes:
    """The plugin can do it."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class No:
    """The plugin cannot do it; `reason` is shown to the user as it stands."""

    reason: str = "not declared"

    def __bool__(self) -> bool:
        return False


Answer = Yes | No
YES = Yes()
NOT_DECLARED = No()


@dataclass(frozen=True)
class Need:
    """Another plugin this one must be given, by kind and name, with its own options table.

    Core builds it first and passes it in under `role`; it stands in the wiring plan like any other.
    """

    role: str
    kind: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)


class NoOptions(BaseModel):
    """The options model of a plugin that has none: any key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def no_needs(options: BaseModel) -> Sequence[Need]:
    """The default of every descriptor's `needs`: nothing else has to be built first."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """What every kind's descriptor has. `contract` is the version it speaks ("1.0"), `options` its options model.

    `needs(options)` lists plugins that core builds first and passes in; `requires` names contract features
    without which it does not work.
    """

    contract: str
    options: type[BaseModel]
    needs: Callable[[BaseModel], Sequence[Need]] = no_needs
    requires: frozenset[str] = frozenset()


def require(answer: Answer, part: str, what: str, remedy: str = "") -> None:
    """Raise `Unsupported` with the plugin's own reason if `answer` is a no."""
    if isinstance(answer, No):
        raise Unsupported(part, f"cannot do {what}: {answer.reason}", remedy)


def missing_features(used: frozenset[str], understood: frozenset[str]) -> Answer:
    """`No` naming every feature in `used` that is not in `understood`, else `YES`."""
    missing = sorted(used - understood)
    return No("does not understand the feature " + ", ".join(missing)) if missing else YES
