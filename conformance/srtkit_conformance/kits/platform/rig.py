"""What the checks of platforms share: the platform under test, work that takes a moment, and expected errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from srtkit.spec.errors import SrtError
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.platform.facts import facts_of
from srtkit_conformance.target import Target

SECONDS = 20.0
"""How long a check waits for work that takes a moment."""
CHAIN = 32
"""Operators of `work`: enough that a device which launches asynchronously is still at it when they are launched."""


@dataclass(frozen=True)
class Rig:
    """An open platform and the device under test."""

    platform: Platform
    facts: DeviceFacts
    device: torch.device

    def zeros(self, *shape: int) -> Tensor:
        """Float32 zeros in an arena."""
        return self.platform.allocate("workspace", shape, torch.float32)

    def wait(self) -> None:
        """For the current stream."""
        self.platform.current_stream().synchronize()


@contextmanager
def opened(target: Target) -> Iterator[Rig]:
    """The platform under test, closed at the end."""
    facts = facts_of(target)
    platform: Platform = target.descriptor.build(PlatformBuild(facts, target.options, device_index=target.device_index))
    try:
        yield Rig(platform, facts, platform.device(target.device_index))
    finally:
        platform.close()


def work(tensor: Tensor) -> None:
    """Add `CHAIN` to every element, one by one."""
    for _ in range(CHAIN):
        tensor.add_(1)


def values(tensor: Tensor) -> list[float]:
    """The different values of its elements, sorted. Waits for the device."""
    return sorted(set(tensor.cpu().flatten().tolist()))


def raised(kind: type[SrtError], action: Callable[[], object], what: str) -> SrtError:
    """The error of that kind that `action` raises. Raises `Failed` if it raises none, or another."""
    try:
        action()
    except kind as error:
        return error
    except Exception as error:
        raise Failed(f"{what} raised another error", observed=repr(error), limit=kind.__name__) from error
    raise Failed(f"{what} raised nothing", limit=kind.__name__)
