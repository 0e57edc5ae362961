"""What a descriptor says of the devices that are here. Imports no torch, so that a check can see who does."""

from __future__ import annotations

from pydantic import BaseModel

from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import PlatformDescriptor
from srtkit_conformance.check import Failed
from srtkit_conformance.target import Target


def describe(descriptor: PlatformDescriptor, options: BaseModel) -> None:
    """One of every call that needs no device object."""
    for facts in descriptor.probe(options):
        descriptor.defaults(facts)
        descriptor.assume(facts.architecture)


def facts_of(target: Target) -> DeviceFacts:
    """What the descriptor under test finds here (a mutant may find something else than its original)."""
    found = list(target.descriptor.probe(target.options))
    if not found:
        raise Failed("probe finds no device, though the plugin was loaded for one")
    facts: DeviceFacts = found[0]
    return facts
