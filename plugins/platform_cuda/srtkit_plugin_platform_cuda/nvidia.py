"""An NVIDIA GPU opened: what driver and torch must have for it, each refusal with its cause."""

from __future__ import annotations

import torch

from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit_plugin_platform_cuda import PART, Options
from srtkit_plugin_platform_cuda.driver import Found, found
from srtkit_plugin_platform_cuda.platform import CudaPlatform, Vendor

NVIDIA = Vendor(PART, monitor="nvidia-smi", blocking="CUDA_LAUNCH_BLOCKING")


def open_gpu(request: PlatformBuild) -> Platform:
    """The platform on GPU `request.device_index`. Raises `DeviceAbsent`."""
    assert isinstance(request.options, Options)
    here = found()
    refuse(here, request.device_index)
    return CudaPlatform(NVIDIA, [gpu.memory_bytes for gpu in here.gpus], request, tf32=request.options.tf32)


def refuse(here: Found, index: int) -> None:
    """Raise `DeviceAbsent` unless torch can use device `index`."""
    if here.problem:
        raise DeviceAbsent(PART, here.problem, "see whether nvidia-smi works; install or update the driver")
    if index >= len(here.gpus):
        cause = f"there is no device {index}: the driver shows {len(here.gpus)}"
        raise DeviceAbsent(PART, cause, "CUDA_VISIBLE_DEVICES may hide some")
    if torch.version.cuda is None:
        raise DeviceAbsent(
            PART, f"this torch, {torch.__version__}, was built without CUDA", "install a CUDA build of torch"
        )
    major = int(torch.version.cuda.partition(".")[0])
    if here.version is not None and here.version[0] < major:
        speaks = "{}.{}".format(*here.version)
        raise DeviceAbsent(
            PART,
            f"the driver is too old: it speaks CUDA {speaks}, and this torch needs {torch.version.cuda}",
            f"update the driver, or install a torch built for CUDA {here.version[0]}",
        )
    if not torch.cuda.is_available():
        raise DeviceAbsent(PART, "torch cannot use the GPU that the driver shows", "torch.cuda.init() says why")
