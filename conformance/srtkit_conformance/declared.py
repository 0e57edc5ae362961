"""What a plugin declares, in words: for the device that is here, or with default options.

`srt plugins show` has it from `srt conformance certificate`: what is promised stands beside what is proven.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from srtkit.config.init import detect_platform
from srtkit.plugins.loading import calling, load
from srtkit.plugins.registry import Offer, Registry
from srtkit.spec.errors import DeviceAbsent, SrtError
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import PlatformDescriptor
from srtkit_conformance.capabilities import OF_FACTS, OF_OPTIONS

# Values of a list that are shown; of a longer one the last, too.
LONG = 8


def declared(offer: Offer, registry: Registry) -> Iterator[tuple[str, str]]:
    """A name and words for each capability; none for a kind that declares none."""
    descriptor = load(offer)
    if offer.kind not in (*OF_FACTS, *OF_OPTIONS):
        return
    try:
        platform = load(registry.find("platform", detect_platform(registry)))
        with calling(offer):
            can = descriptor.capabilities(_facts(platform) if offer.kind in OF_FACTS else descriptor.options())
    except SrtError as error:
        yield "capabilities", f"unknown: {error.part}: {error.cause.partition(chr(10))[0]}"
    else:
        yield from ((name, _words(value)) for name, value in vars(can).items())


def _facts(platform: PlatformDescriptor) -> DeviceFacts:
    """Of the first device. Raises `DeviceAbsent` when it has gone since it was looked for."""
    for facts in platform.probe(platform.options()):
        return facts
    raise DeviceAbsent("platform", "the device that was found is not here any more")


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, Collection):
        listed = list(map(str, sorted(value) if isinstance(value, frozenset) else value))
        return ", ".join([*listed[:LONG], "…", listed[-1]] if len(listed) > LONG else listed) or "none"
    return "yes" if value else f"no: {value.reason}"
