"""The CPU platform: facts from the operating system, and defaults for it. Imports no torch.

Always here, so detection asks it last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec import hookimpl
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import Finding, Platform, PlatformBuild, PlatformDefaults, PlatformDescriptor
from srtkit_plugin_platform_cpu.facts import DTYPES, cpu_facts

ARCHITECTURES = ("x86_64", "aarch64")


class Options(BaseModel):
    """`[platform.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int | None = Field(
        None,
        ge=1,
        description="threads that compute; by default one for each physical core this process may use, at most "
        "OMP_NUM_THREADS",
    )
    pin: bool = Field(False, description="keep each computing thread on a core of its own")


def probe(options: BaseModel) -> Sequence[DeviceFacts]:
    """This machine."""
    return (cpu_facts(),)


def assume(architecture: str) -> DeviceFacts | None:
    """A machine of 16 GiB, to check a configuration elsewhere."""
    if architecture not in ARCHITECTURES:
        return None
    name = f"assumed {architecture}"
    return DeviceFacts("cpu", name, architecture, memory_bytes=16 << 30, dtypes=DTYPES, host_memory=True)


def defaults(facts: DeviceFacts) -> PlatformDefaults:
    """Half of the memory at most, and 4 GiB of KV pages: other programs live here too.

    `dummy` is no default loader: made-up weights must be asked for.
    """
    # An x86 without AVX2, old or made so by a virtual machine, has no kernels in cpu-native.
    without = facts.architecture == "x86_64" and "avx2" not in facts.extra.get("isa", "avx2").split()
    native = () if without else ("cpu-native",)
    return PlatformDefaults(
        plugins={
            "attention": (*native, "torch"),
            "graph_runner": ("eager",),
            "ops": (*native, "cpu"),
            "prefix_cache": ("radix",),
            "transport": ("zmq",),
            "model_loader": ("gguf", "safetensors"),
            "models": ("models",),
        },
        dtype="bfloat16",
        memory_fraction=0.5,
        # By default libgomp's barriers spin through whole time slices when another process wants a core, and
        # the API process does while the rank computes. About a microsecond of spinning is enough on idle cores.
        # Weights in pages of 2 MiB, which glibc asks for on request only: a step reads all of them.
        environment={"GOMP_SPINCOUNT": "1000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
        extra={"kv_gib_cap": "4"},
    )


def examine(environment: Mapping[str, str]) -> Sequence[Finding]:
    """The processor, and a variable that is often left over from other programs."""
    facts = cpu_facts()
    cores, threads = int(facts.extra["cores"]), environment.get("OMP_NUM_THREADS", "")
    findings = [Finding("ok", "CPU", f"{facts.name}, {cores} cores, {facts.memory_bytes / 2**30:.0f} GiB")]
    if threads.isdigit() and int(threads) < cores:
        detail = f"has a rank compute with {threads} of {cores} cores: unset it, or set [platform.options] threads"
        findings.append(Finding("warn", "OMP_NUM_THREADS", detail))
    return findings


def build(request: PlatformBuild) -> Platform:
    """The platform object; sets up the threads of the caller, which must be the one that will compute."""
    from srtkit_plugin_platform_cpu.platform import CpuPlatform

    assert isinstance(request.options, Options)
    return CpuPlatform(request.options)


@hookimpl
def srtkit_platform() -> PlatformDescriptor:
    """Offers `platform:cpu`."""
    return PlatformDescriptor(
        contract="1.1",
        options=Options,
        probe=probe,
        assume=assume,
        defaults=defaults,
        build=build,
        priority=0,
        architectures=ARCHITECTURES,
        examine=examine,
    )
