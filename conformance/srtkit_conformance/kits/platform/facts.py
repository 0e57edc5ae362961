"""What a descriptor says of the devices that are here, or are assumed.

Imports no torch, so that a check can see who does.
"""

from __future__ import annotations

from pydantic import BaseModel

from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import PlatformDescriptor
from srtkit_conformance.check import Failed
from srtkit_conformance.target import ABSENT, Target

USUAL = (
    *("x86_64", "aarch64"),
    *("sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"),
    *("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"),
)
"""Architectures that a table may know: it is asked for them where no device is that would name its own."""


def describe(descriptor: PlatformDescriptor, options: BaseModel) -> None:
    """One of every call that needs no device object."""
    for facts in descriptor.probe(options):
        descriptor.defaults(facts)
        descriptor.assume(facts.architecture)
    descriptor.examine({})


def facts_of(target: Target) -> DeviceFacts:
    """What the descriptor under test finds here (a mutant may find something else than its original)."""
    found = list(target.descriptor.probe(target.options))
    if not found:
        raise Failed("probe finds no device, though the plugin was loaded for one")
    facts: DeviceFacts = found[0]
    return facts


def absent(target: Target) -> bool:
    """Whether the device under test may be absent, as at level 0, and is."""
    return target.facts.architecture == ABSENT and not target.descriptor.probe(target.options)


def assumed(target: Target) -> dict[str, DeviceFacts]:
    """What its table says of the usual architectures that it knows."""
    said = {name: target.descriptor.assume(name) for name in USUAL}
    return {name: facts for name, facts in said.items() if facts is not None}


def here_or_assumed(target: Target) -> list[DeviceFacts]:
    """The device that is here; if it is absent and may be, those that are assumed, which may be none."""
    return [*assumed(target).values()] if absent(target) else [facts_of(target)]
