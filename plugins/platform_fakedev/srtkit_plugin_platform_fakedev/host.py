"""Pinned host memory: a host tensor that notices when the host uses it without having waited for the device.

Views and sizes are free; every other use counts as a read and a write, `numpy()` too, since its array can be
written at any time. (Use of such an array is not seen here: a copy to the device compares its source when it
runs, a copy to the host leaves poison until it has run.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from srtkit_plugin_platform_fakedev.device import Device
from srtkit_plugin_platform_fakedev.memory import bytes_of

# fmt: off
_FREE = frozenset({
    "__getitem__", "__len__", "__get__", "size", "stride", "dim", "ndimension", "numel", "nelement",
    "element_size", "data_ptr", "storage_offset", "untyped_storage", "is_contiguous", "is_pinned", "view",
    "view_as", "narrow", "select", "squeeze", "unsqueeze", "expand", "as_strided", "detach", "flatten",
    "unflatten", "movedim", "transpose", "permute", "t", "unbind", "split", "chunk",
})
# fmt: on
"""Functions that look at no element."""


class HostTensor(Tensor):
    """Host memory that the device `owner` may use. Tensors made of one by torch are of this class, too."""

    owner: Device

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Check the pinned arguments, do it, and make what comes out of this class."""
        given = [one for one in (*args, *(kwargs or {}).values()) if isinstance(one, HostTensor)]
        if func.__name__ not in _FREE and not _is_transfer(args, kwargs or {}):
            for one in given:
                _check(one, func.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return _made(result, given[0].owner) if given else result

    def as_plain(self) -> Tensor:
        """The same memory, without this class."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(Tensor)


def host_buffer(device: Device, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros that `device` may use."""
    plain = torch.zeros(tuple(shape), dtype=dtype)
    device.pin(plain)
    result: Tensor = _made(plain, device)
    return result


def _check(tensor: HostTensor, what: str) -> None:
    plain = tensor.as_plain()
    history = tensor.owner.pinned(plain)
    if history is not None:
        tensor.owner.host_uses(history, bytes_of(plain), True, what)


def _is_transfer(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether another device takes part, which then orders the use of this memory itself."""
    places = [one.device if isinstance(one, Tensor) else one for one in (*args, *kwargs.values())]
    return any(str(one).startswith("fakedev") for one in places if isinstance(one, (torch.device, str)))


def _made(result: Any, owner: Device) -> Any:
    if isinstance(result, list | tuple) and any(isinstance(one, Tensor) for one in result):
        return type(result)(_made(one, owner) for one in result)
    if not isinstance(result, Tensor) or result.device.type != "cpu" or isinstance(result, HostTensor):
        return result
    with torch._C.DisableTorchFunctionSubclass():
        made = result.as_subclass(HostTensor)
    made.owner = owner
    return made
