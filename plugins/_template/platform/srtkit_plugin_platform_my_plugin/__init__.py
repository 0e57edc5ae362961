"""Platform `my-plugin`: the descriptor. Data and pure functions; `build` imports torch.

The device is this machine's CPU under another name. A real one asks its driver in `probe`, without torch.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from pydantic import BaseModel

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.platform import Platform, PlatformBuild, PlatformDefaults, PlatformDescriptor

DTYPES = frozenset({"float32", "bfloat16"})
ARCHITECTURES = ("x86_64", "aarch64")
ASSUMED_BYTES = 16 << 30


def probe(options: BaseModel) -> Sequence[DeviceFacts]:
    """The device. A platform whose driver or device is absent returns []."""
    return [
        DeviceFacts(
            platform="my-plugin",
            name=platform.processor() or "CPU",
            architecture=platform.machine(),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            dtypes=DTYPES,
        )
    ]


def assume(architecture: str) -> DeviceFacts | None:
    """Facts for `srt explain --assume`, where the device itself is not there."""
    if architecture not in ARCHITECTURES:
        return None
    return DeviceFacts("my-plugin", f"assumed {architecture}", architecture, 1, ASSUMED_BYTES, DTYPES)


def defaults(facts: DeviceFacts) -> PlatformDefaults:
    """What goes with the device. A kind that is not named here has core's default."""
    return PlatformDefaults(
        plugins={"attention": ("torch",), "graph_runner": ("eager",)}, dtype="float32", memory_fraction=0.5
    )


def build(given: PlatformBuild) -> Platform:
    """The device objects of this process."""
    from srtkit_plugin_platform_my_plugin.device import MyPluginPlatform

    return MyPluginPlatform(given.facts)


@hookimpl
def srtkit_platform() -> PlatformDescriptor:
    """Offers the platform `my-plugin`. Its priority is below the CPU's: a real device says more than 0."""
    return PlatformDescriptor(
        contract="1.1",
        options=NoOptions,
        probe=probe,
        assume=assume,
        defaults=defaults,
        build=build,
        priority=-1,
        architectures=ARCHITECTURES,
    )
