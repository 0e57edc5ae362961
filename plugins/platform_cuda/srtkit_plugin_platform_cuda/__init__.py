"""NVIDIA GPUs as srtkit's device: facts from the driver, and defaults for them. Imports no torch; `build` does."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec import hookimpl
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import Platform, PlatformBuild, PlatformDefaults, PlatformDescriptor
from srtkit_plugin_platform_cuda.driver import Found, Gpu, found

PART = "platform:cuda"
GIB = 1 << 30
TABLE = {
    gpu.architecture: gpu
    for gpu in (
        Gpu("assumed T4, 16 GB", "sm75", 15 * GIB, 40),
        Gpu("assumed A100, 80 GB", "sm80", 79 * GIB, 108),
        Gpu("assumed A10, 24 GB", "sm86", 22 * GIB, 72),
        Gpu("assumed L4, 24 GB", "sm89", 22 * GIB, 58),
        Gpu("assumed H100, 80 GB", "sm90", 79 * GIB, 132),
        Gpu("assumed B200, 180 GB", "sm100", 178 * GIB, 148),
        Gpu("assumed RTX 5090, 32 GB", "sm120", 31 * GIB, 170),
    )
}
"""One usual card of each architecture, to check a configuration elsewhere."""


class Options(BaseModel):
    """`[platform.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tf32: bool = Field(False, description="let float32 matrix products round their factors to TF32: faster, 3 digits")


def probe(options: BaseModel) -> Sequence[DeviceFacts]:
    """One entry for each kind of GPU that the driver shows, that of device 0 first; [] without any."""
    here = found()
    kinds = dict.fromkeys(here.gpus)
    return [facts_of(gpu, list(here.gpus).count(gpu), here) for gpu in kinds]


def facts_of(gpu: Gpu, count: int, here: Found) -> DeviceFacts:
    """`extra`: "multiprocessors", and "cuda", the newest version that the driver speaks."""
    capability = int(gpu.architecture.removeprefix("sm"))
    extra = {"multiprocessors": str(gpu.multiprocessors)}
    if here.version is not None:
        extra["cuda"] = "{}.{}".format(*here.version)
    return DeviceFacts(
        platform="cuda",
        name=gpu.name,
        architecture=gpu.architecture,
        count=count,
        memory_bytes=gpu.memory_bytes,
        dtypes=frozenset({"float32", "float16", *(["bfloat16"] if capability >= 80 else [])}),
        fp8="e4m3fn" if capability >= 89 else None,
        async_launch=True,
        graphs=True,
        pinned=True,
        peer_access=here.peers,
        extra=extra,
    )


def assume(architecture: str) -> DeviceFacts | None:
    """A card of the table, to check a configuration elsewhere."""
    gpu = TABLE.get(architecture)
    return None if gpu is None else facts_of(gpu, 1, Found())


def defaults(facts: DeviceFacts) -> PlatformDefaults:
    """Triton's kernels, and decode steps as graphs. Triton compiles for compute capability 8.0 and above."""
    triton = () if facts.architecture == "sm75" else ("triton",)
    return PlatformDefaults(
        plugins={
            "attention": (*triton, "torch"),
            "graph_runner": ("cuda-full", "cuda-piecewise", "eager"),
            "ops": triton,
            "prefix_cache": ("radix",),
            "transport": ("zmq",),
            "model_loader": ("safetensors", "gguf"),
            "models": ("models",),
        },
        dtype="bfloat16" if "bfloat16" in facts.dtypes else "float16",
        memory_fraction=0.88,
    )


def build(request: PlatformBuild) -> Platform:
    """The platform object, with its device made current in this thread. Raises `DeviceAbsent` with the cause."""
    from srtkit_plugin_platform_cuda.nvidia import open_gpu

    return open_gpu(request)


@hookimpl
def srtkit_platform() -> PlatformDescriptor:
    """Offers `platform:cuda`."""
    return PlatformDescriptor(
        contract="1.1",
        options=Options,
        probe=probe,
        assume=assume,
        defaults=defaults,
        build=build,
        priority=10,
        architectures=tuple(TABLE),
    )
