"""A fake accelerator: the platform's descriptor. Imports no torch; the device is made at `build`.

It is never chosen by detection: its priority is below the CPU's, which is always here.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec import hookimpl
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import Platform, PlatformBuild, PlatformDefaults, PlatformDescriptor

ARCHITECTURE = "fakedev1"
DTYPES = frozenset({"float32", "bfloat16", "float16"})
MIB = 1 << 20


class Options(BaseModel):
    """`[platform.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    devices: int = Field(2, ge=1, le=16, description="how many devices there are")
    memory_mib: int = Field(256, ge=1, description="memory of each device; what exceeds it is an OutOfMemory")


def facts_of(options: Options) -> DeviceFacts:
    """Devices that launch asynchronously, capture graphs and have pinned host memory."""
    return DeviceFacts(
        platform="fakedev",
        name="fake accelerator",
        architecture=ARCHITECTURE,
        count=options.devices,
        memory_bytes=options.memory_mib * MIB,
        dtypes=DTYPES,
        async_launch=True,
        graphs=True,
        pinned=True,
    )


def probe(options: BaseModel) -> Sequence[DeviceFacts]:
    """Always here: it is made of the host."""
    assert isinstance(options, Options)
    return (facts_of(options),)


def assume(architecture: str) -> DeviceFacts | None:
    """The same device with the default options."""
    return facts_of(Options()) if architecture == ARCHITECTURE else None


def defaults(facts: DeviceFacts) -> PlatformDefaults:
    """Plugins of this repository that compute on any torch device, and the torch references of the operators."""
    return PlatformDefaults(
        plugins={
            "attention": ("torch",),
            "graph_runner": ("cuda-full", "eager"),
            "ops": (),
            "prefix_cache": ("radix",),
            "transport": ("zmq",),
            "model_loader": ("gguf", "safetensors"),
            "models": ("models",),
        },
        dtype="float32",
        memory_fraction=0.8,
    )


def build(request: PlatformBuild) -> Platform:
    """The platform object. Makes the name "fakedev" known to torch, once a process."""
    from srtkit_plugin_platform_fakedev.platform import FakePlatform

    assert isinstance(request.options, Options)
    return FakePlatform(request.options, request.device_index)


@hookimpl
def srtkit_platform() -> PlatformDescriptor:
    """Offers `platform:fakedev`."""
    return PlatformDescriptor(
        contract="1.1",
        options=Options,
        probe=probe,
        assume=assume,
        defaults=defaults,
        build=build,
        priority=-1,
        architectures=(ARCHITECTURE,),
    )
