"""An attention whose steps can be recorded, as an installed plugin: graph runners are served with it.

The reference cannot be recorded, so that with it alone a graph runner would have nothing to do. Imports no torch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover
from srtkit.spec.attention import AttentionBackend, AttentionBuild, AttentionCapabilities, AttentionDescriptor
from srtkit.spec.capabilities import No
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit_conformance.kits.server.model import REFERENCE

NAME = "recordable"
ORIGIN = REFERENCE["attention.use"]
"""It takes the place of this one, whose pages and layouts it has."""
CONTEXT = 256
"""Tokens. Each recording holds memory for whole page tables."""
METADATA = "Metadata-Version: 2.1\nName: srtkit-recordable\nVersion: 1.0\nRequires-Dist: srtkit-core>=0.1\n"


def install(site: Path) -> None:
    """Write a distribution whose plugin is this module into `site`."""
    info = site / "srtkit_recordable-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(f"[srtkit.attention.v1]\n{NAME} = {__name__}\n")
    (info / "RECORD").write_text("")


def build(given: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group."""
    from srtkit_conformance.kits.server.whole_tables import WholeTables

    return WholeTables(given)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers it."""
    origin: AttentionDescriptor = load(discover().find("attention", ORIGIN))
    no = No("it is for steps that are recorded")

    def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
        can = origin.capabilities(facts)
        plain = replace(can, features=frozenset(), lse=no, dense=no, advance=no, move_slots=no, prefix_groups=no)
        return replace(plain, capture="one_token")

    return replace(origin, capabilities=capabilities, build=build)
