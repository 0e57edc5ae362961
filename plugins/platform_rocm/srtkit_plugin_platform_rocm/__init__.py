"""AMD GPUs as srtkit's device: facts from the kernel driver, and defaults for them. Imports no torch; `build` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from srtkit.spec import hookimpl
from srtkit.spec.capabilities import NoOptions
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import Finding, Platform, PlatformBuild, PlatformDefaults, PlatformDescriptor
from srtkit_plugin_platform_rocm.cards import CARDS, NAMES, Card
from srtkit_plugin_platform_rocm.topology import Gpu, linked, visible

PART = "platform:rocm"


def probe(options: BaseModel) -> Sequence[DeviceFacts]:
    """One entry for each kind of GPU that the kernel driver shows, that of the first one first; [] without any.

    HIP_VISIBLE_DEVICES and its like are not followed here: they choose among GPUs that are normally all alike.
    """
    gpus = visible()
    kinds: dict[tuple[str, int], list[Gpu]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu.architecture, gpu.device_id), []).append(gpu)
    return [facts_of(alike, peers=linked(gpus)) for alike in kinds.values()]


def facts_of(alike: Sequence[Gpu], *, peers: bool) -> DeviceFacts:
    """GPUs of one kind: the driver's figures, and the table's where it knows the architecture."""
    gpu = alike[0]
    card = CARDS.get(gpu.architecture)
    figures = {
        "compute_units": str(gpu.compute_units),
        "lds_kib": str(card.lds_kib if card else gpu.lds_kib),
        "wavefront": str(gpu.wavefront),
        "device_id": f"0x{gpu.device_id:04x}",
    }
    name = NAMES.get(gpu.device_id, f"AMD GPU {figures['device_id']}")
    return _facts(name, gpu.architecture, len(alike), gpu.memory_bytes, card.fp8 if card else None, peers, figures)


def assume(architecture: str) -> DeviceFacts | None:
    """A card of the table, to check a configuration elsewhere."""
    card = CARDS.get(architecture)
    return None if card is None else _assumed(card)


def _assumed(card: Card) -> DeviceFacts:
    figures = {
        "compute_units": str(card.compute_units),
        "lds_kib": str(card.lds_kib),
        "wavefront": str(card.wavefront),
        "memory_gbps": str(card.memory_gbps),
    }
    return _facts(f"assumed {card.name}", card.architecture, 1, card.memory_bytes, card.fp8, False, figures)


def _facts(
    name: str, architecture: str, count: int, memory_bytes: int, fp8: str | None, peers: bool, extra: dict[str, str]
) -> DeviceFacts:
    return DeviceFacts(
        platform="rocm",
        name=name,
        architecture=architecture,
        count=count,
        memory_bytes=memory_bytes,
        dtypes=frozenset({"float32", "float16", "bfloat16"}),
        fp8=fp8,
        async_launch=True,
        graphs=True,
        pinned=True,
        peer_access=peers,
        extra=extra,
    )


def defaults(facts: DeviceFacts) -> PlatformDefaults:
    """aiter's kernels where AMD writes them for the architecture, Triton's elsewhere; steps as HIP graphs."""
    aiter = ("aiter",) if facts.architecture in CARDS else ()
    return PlatformDefaults(
        plugins={
            "attention": (*aiter, "triton", "torch"),
            "graph_runner": ("cuda-full", "cuda-piecewise", "eager"),
            "ops": (*aiter, "triton"),
            "prefix_cache": ("radix",),
            "transport": ("zmq",),
            "model_loader": ("safetensors", "gguf"),
            "models": ("models",),
        },
        dtype="bfloat16",
        memory_fraction=0.88,
        # Arguments of kernels in the GPU's memory: AMD's guide to serving on these GPUs ("HIP and math libraries" in
        # rocm.docs.amd.com/projects/ai-ecosystem, vLLM V1 performance optimization) has every launch sooner with it.
        environment={"HIP_FORCE_DEV_KERNARG": "1"},
    )


def examine(environment: Mapping[str, str]) -> Sequence[Finding]:
    """What bites on this machine, for `srt doctor`."""
    from srtkit_plugin_platform_rocm.findings import Machine

    return Machine(environment).findings()


def build(request: PlatformBuild) -> Platform:
    """The platform object, with its device made current in this thread. Raises `DeviceAbsent` with the cause."""
    from srtkit_plugin_platform_rocm.platform import open_gpu

    return open_gpu(request)


@hookimpl
def srtkit_platform() -> PlatformDescriptor:
    """Offers `platform:rocm`."""
    return PlatformDescriptor(
        contract="1.1",
        options=NoOptions,
        probe=probe,
        assume=assume,
        defaults=defaults,
        build=build,
        priority=10,
        architectures=tuple(CARDS),
        examine=examine,
    )
