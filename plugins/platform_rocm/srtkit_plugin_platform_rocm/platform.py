"""An AMD GPU opened: what torch must have for it, each refusal with its cause.

torch has HIP under CUDA's names, and RCCL under NCCL's: streams, events, memory, graphs and groups of ranks are those
of srtkit-plugin-platform-cuda.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit_plugin_platform_cuda.platform import CudaPlatform, Vendor
from srtkit_plugin_platform_rocm import PART

AMD = Vendor(PART, monitor="rocm-smi", blocking="HIP_LAUNCH_BLOCKING")
WHEELS = "pytorch.org/get-started has the line that installs a build for ROCm"


@dataclass(frozen=True)
class Built:
    """The installed torch: its version, the HIP it was built with (None for none), the architectures it has kernels of,
    and those of the devices that it finds, by index.
    """

    version: str
    hip: str | None
    kernels: Sequence[str]
    devices: Sequence[str]


def open_gpu(request: PlatformBuild) -> Platform:
    """The platform on GPU `request.device_index`, as HIP counts them. Raises `DeviceAbsent`."""
    here = built()
    refuse(here, request.device_index)
    totals = [torch.cuda.get_device_properties(index).total_memory for index in range(len(here.devices))]
    return CudaPlatform(AMD, totals, request)


def built() -> Built:
    """What torch says of itself and, if it was built for ROCm, of the devices."""
    if torch.version.hip is None:
        return Built(torch.__version__, None, (), ())
    devices = [torch.cuda.get_device_properties(index).gcnArchName for index in range(torch.cuda.device_count())]
    return Built(torch.__version__, torch.version.hip, torch.cuda.get_arch_list(), devices)


def refuse(here: Built, index: int) -> None:
    """Raise `DeviceAbsent` unless torch can compute on device `index`."""
    if here.hip is None:
        raise DeviceAbsent(PART, f"this torch, {here.version}, was built without ROCm", WHEELS)
    if not here.devices:
        raise DeviceAbsent(
            PART, f"torch {here.version} finds no GPU", "`srt doctor` looks at driver, rights, variables"
        )
    if index >= len(here.devices):
        remedy = "HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES may hide some"
        raise DeviceAbsent(PART, f"there is no device {index}: torch finds {len(here.devices)}", remedy)
    name = here.devices[index].partition(":")[0]  # "gfx942:sramecc+:xnack-"
    if name not in {kernel.partition(":")[0] for kernel in here.kernels}:
        cause = f"torch {here.version} for HIP {here.hip} has no kernels for {name}, only for {', '.join(here.kernels)}"
        raise DeviceAbsent(PART, cause, f"install a newer one: {WHEELS}")
