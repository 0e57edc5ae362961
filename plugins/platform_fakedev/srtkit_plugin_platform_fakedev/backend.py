"""The name "fakedev" in torch: registered once a process, when the first platform is built.

Torch keeps one table of devices a process, so this module must, too: it says which fake device is meant by
an index when no tensor is there to tell, e.g. in `torch.empty(2, device="fakedev:0")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from srtkit.spec.errors import Unsupported
from srtkit_plugin_platform_fakedev.device import Device
from srtkit_plugin_platform_fakedev.faults import PART
from srtkit_plugin_platform_fakedev.tensor import copy_, create, new_tensor

NAME = "fakedev"
FACTORIES: tuple[OpOverload, ...] = (
    torch.ops.aten.arange.default,
    torch.ops.aten.arange.start,
    torch.ops.aten.arange.start_step,
    torch.ops.aten.linspace.default,
    torch.ops.aten.eye.default,
    torch.ops.aten.eye.m,
    torch.ops.aten.randperm.default,
)
"""Operators without tensors that torch would compose by resizing an empty one."""
_open: dict[int, list[Device]] = {}
_libraries: list[torch.library.Library] = []


class DeviceModule:
    """`torch.fakedev`: what torch asks of every device's module."""

    @staticmethod
    def is_available() -> bool:
        """Whether a platform is open."""
        return any(_open.values())

    @staticmethod
    def is_initialized() -> bool:
        """Nothing has to be set up later."""
        return True

    @staticmethod
    def device_count() -> int:
        """Devices of the open platforms."""
        return sum(bool(devices) for devices in _open.values())

    @staticmethod
    def current_device() -> int:
        """Always the first: a device is named, never switched to."""
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Random numbers are the host's."""


def open_device(device: Device) -> None:
    """Make this the device of its index. Of several platforms in one process the newest is meant."""
    _open.setdefault(device.torch_device.index, []).append(device)


def close_device(device: Device) -> None:
    """Forget it. Idempotent; its tensors stay usable."""
    devices = _open.get(device.torch_device.index, [])
    if device in devices:
        devices.remove(device)


def register() -> None:
    """Make the name known to torch. Raises `Unsupported` when another package has torch's one free place."""
    if _libraries:
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise Unsupported(PART, f'torch has one place for a device of Python, and "{taken}" has it', "use one of them")
    _setup_privateuseone_for_python_backend(NAME, DeviceModule())
    aten = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    aten.impl("empty.memory_format", _empty, "PrivateUse1")  # type: ignore[no-untyped-call]
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")  # type: ignore[no-untyped-call]
    for func in FACTORIES:
        aten.impl(func.name().removeprefix("aten::"), partial(_make, func), "PrivateUse1")  # type: ignore[no-untyped-call]
    aten.impl("_copy_from", _copy_from, "PrivateUse1")  # type: ignore[no-untyped-call]
    _libraries.append(aten)


def _device(asked: torch.device | None) -> Device:
    devices = _open.get((asked.index if asked is not None else 0) or 0)
    if not devices:
        raise Unsupported(PART, f"there is no device {asked}", "build the platform first")
    return devices[-1]


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    return new_tensor(_device(device), torch.empty(size, dtype=dtype, device="meta"))


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: Any = None,
) -> Tensor:
    return new_tensor(_device(device), torch.empty_strided(size, stride, dtype=dtype, device="meta"))


def _make(func: OpOverload, *args: Any, device: torch.device | None = None, **kwargs: Any) -> Tensor:
    return create(_device(device), func, args, kwargs)


def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    """How torch copies below its Python layer, inside `torch.tensor`."""
    return copy_(to, source, non_blocking)
