"""What NVIDIA's driver says of the GPUs that this process may use, through its own library by ctypes. No torch.

The driver's library follows CUDA_VISIBLE_DEVICES, as torch does, so indices are the same. Asking creates no
context and takes no memory of a device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

SUCCESS = 0
NO_DEVICE = 100
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CU_DEVICE_ATTRIBUTE_…


@dataclass(frozen=True)
class Gpu:
    """One device: `architecture` is compute capability as "sm90"; `memory_bytes` its total."""

    name: str
    architecture: str
    memory_bytes: int
    multiprocessors: int


@dataclass(frozen=True)
class Found:
    """`gpus` by index; `version` is the newest CUDA that the driver speaks, (13, 0), None without a driver.

    `peers`: every device can read every other's memory. `problem`: why there is no device, "" when there is one.
    """

    gpus: Sequence[Gpu] = ()
    version: tuple[int, int] | None = None
    peers: bool = False
    problem: str = ""


def found() -> Found:
    """What is here. Never raises: without a driver `problem` says so."""
    library = _library()
    return Found(problem="NVIDIA's driver is not installed (no libcuda.so.1)") if library is None else ask(library)


def ask(cuda: Any) -> Found:
    """The same of a loaded driver library."""
    number = ctypes.c_int()
    version = None
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == SUCCESS:
        version = (number.value // 1000, number.value % 1000 // 10)
    code = cuda.cuInit(0)
    if code != SUCCESS:
        hint = "it sees no GPU" if code == NO_DEVICE else "GPU and driver may not fit, or a container lacks the device"
        return Found(version=version, problem=f"the driver does not start: CUDA error {code}, {hint}")
    if cuda.cuDeviceGetCount(ctypes.byref(number)) != SUCCESS or number.value == 0:
        return Found(version=version, problem="the driver sees no GPU; CUDA_VISIBLE_DEVICES may hide it")
    gpus = [_gpu(cuda, index) for index in range(number.value)]
    return Found(tuple(gpus), version, _peers(cuda, len(gpus)))


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _gpu(cuda: Any, index: int) -> Gpu:
    name, total = ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGetName(name, len(name), index)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), index)
    major, minor, processors = (_attribute(cuda, one, index) for one in (_MAJOR, _MINOR, _MULTIPROCESSORS))
    return Gpu(name.value.decode(), f"sm{major}{minor}", total.value, processors)


def _attribute(cuda: Any, which: int, index: int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), which, index)
    return value.value


def _peers(cuda: Any, count: int) -> bool:
    able = ctypes.c_int()
    for one in range(count):
        for other in range(count):
            if one != other and (
                cuda.cuDeviceCanAccessPeer(ctypes.byref(able), one, other) != SUCCESS or not able.value
            ):
                return False
    return count > 1
