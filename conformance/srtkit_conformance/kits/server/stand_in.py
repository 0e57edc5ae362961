"""A mutant as an installed plugin: `srt serve` finds plugins by their entry points, and mutants are objects.

A distribution of one module is written for it, whose hook makes the mutant anew in each process of the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover
from srtkit_conformance.catalogue import SERVER, suite_for
from srtkit_conformance.kits.light import LightPlugin
from srtkit_conformance.target import Target

NAME = "stand-in"
SOURCE = '''"""Stands in for a wrong plugin of the conformance suite."""

from srtkit.spec.hookspecs import hookimpl
from srtkit_conformance.kits.server.stand_in import made


@hookimpl
def srtkit_{kind}():
    return made("{kind}", "{origin}", "{mutant}")
'''


def install(target: Target, site: Path) -> None:
    """Write the distribution of a mutant into `site`."""
    source = SOURCE.format(kind=target.kind, origin=target.origin, mutant=target.name)
    LightPlugin(source=source, group=f"srtkit.{target.kind}.v1", entry=NAME).install(site)


def made(kind: str, origin: str, mutant: str) -> Any:
    """The mutant's descriptor. Imports no torch, as light modules must not."""
    (found,) = (one for one in suite_for(SERVER).mutants() if one.id == mutant)
    return found.make(load(discover().find(kind, origin)))
