"""What a check is: an id, the clause it tests, and a body that looks at one plugin. Knows no kind and no runner.

A body returns figures worth reporting (or None), returns `Refused` when the plugin declares that it cannot do
this and refused as it must, and raises `Failed` for everything else. There is no skip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from srtkit_conformance.target import Target

Figures = Mapping[str, float | int | str]

SECONDS = 120.0
"""Within which a check must end; most take less than one. A first call may compile its kernels, on a busy machine."""


class Failed(AssertionError):
    """The plugin does not do what the clause says. `observed` and `limit` are shown beside the message."""

    def __init__(self, message: str, *, observed: object = None, limit: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.observed = observed
        self.limit = limit


class SuiteError(Exception):
    """The suite itself is at fault, not the plugin: e.g. a kit's own reference contradicts itself."""


@dataclass(frozen=True)
class Refused:
    """Declared as a no, asked for anyway, and refused with `Unsupported` before the step."""

    reason: str


@dataclass(frozen=True)
class Informational:
    """Worth knowing, neither good nor bad: e.g. works although declared as a no."""

    message: str
    figures: Figures = field(default_factory=dict)


Outcome = Figures | Refused | Informational | None
Body = Callable[[Target], Outcome]


@dataclass(frozen=True)
class Check:
    """One check; it fails if it takes longer than `seconds`. All run in a child process; `isolated`: in one of its own.

    That is for checks in which a faulty plugin is likely to crash, or to leave the process spoilt for others.
    `forks`: it starts processes itself, which must not inherit what earlier checks have opened.
    `id` is stable and starts with the kind ("attention.features.window"); `level` is the lowest that runs it;
    `clause` names the contract's sentence; `explain` gives typical causes of a failure.
    """

    id: str
    kind: str
    level: int
    clause: str
    explain: str
    body: Body
    isolated: bool = False
    seconds: float = SECONDS
    forks: bool = False


def check(
    id_: str,
    *,
    level: int,
    clause: str,
    explain: str,
    isolated: bool = False,
    seconds: float = SECONDS,
    forks: bool = False,
) -> Callable[[Body], Check]:
    """Turn a body into a `Check`; its kind is the id's first part."""

    def made(body: Body) -> Check:
        return Check(id_, id_.partition(".")[0], level, clause, explain, body, isolated, seconds, forks)

    return made


def checks_of(module: ModuleType) -> tuple[Check, ...]:
    """The checks a module defines, in order of definition."""
    return tuple(value for value in vars(module).values() if isinstance(value, Check))


def expect(condition: bool, message: str, *, observed: object = None, limit: object = None) -> None:
    """Raise `Failed` unless `condition` holds."""
    if not condition:
        raise Failed(message, observed=observed, limit=limit)
