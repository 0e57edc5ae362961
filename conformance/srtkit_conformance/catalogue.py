"""Which modules hold the checks and mutants of a kind. The suite owns this list; nothing registers itself."""

from __future__ import annotations

import importlib
import importlib.util

from srtkit_conformance.check import Check, checks_of
from srtkit_conformance.mutant import Mutant, mutants_of

KINDS = (
    "attention",
    "recurrent",
    "prefix_cache",
    "graph_runner",
    "model_loader",
    "transport",
    "platform",
    "ops",
    "models",
)
"""Kinds the suite certifies."""

SUITE = "srtkit_conformance"


def checks_for(kind: str) -> tuple[Check, ...]:
    """Every check of a kind, those of loading and hygiene first. Ids are unique."""
    found: list[Check] = []
    for module in _modules("checks", ("loading", kind)):
        for one in checks_of(module):
            found.append(one if one.kind == kind else _for_kind(one, kind))
    ids = [one.id for one in found]
    assert len(set(ids)) == len(ids), f"a check id of {kind} is used twice"
    return tuple(found)


def mutants_for(kind: str) -> tuple[Mutant, ...]:
    """Every mutant and legal variant of a kind."""
    return tuple(one for module in _modules("mutants", (kind,)) for one in mutants_of(module))


def _for_kind(check: Check, kind: str) -> Check:
    """A check that every kind shares, under the kind's name: "attention.loading.light"."""
    return Check(
        id=f"{kind}.{check.id}",
        kind=kind,
        level=check.level,
        clause=check.clause,
        explain=check.explain,
        body=check.body,
        isolated=check.isolated,
        seconds=check.seconds,
    )


def _modules(part: str, names: tuple[str, ...]):  # type: ignore[no-untyped-def]
    for name in names:
        path = f"{SUITE}.{part}.{name}"
        if importlib.util.find_spec(path) is None:
            continue
        package = importlib.import_module(path)
        submodules = getattr(package, "MODULES", ())
        yield from [importlib.import_module(f"{path}.{one}") for one in submodules] or [package]
