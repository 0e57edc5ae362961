"""What a platform makes: devices that compute, host buffers, and groups of one rank."""

from __future__ import annotations

import torch

from srtkit.spec.layers import DTYPES
from srtkit_conformance.check import Figures, check, expect
from srtkit_conformance.kits.platform.rig import SECONDS, opened
from srtkit_conformance.target import Target


@check(
    "platform.device",
    level=1,
    clause="platform/1.0: device(index): the torch device",
    explain="torch does not know the device by this name and index, or arenas lie on another one.",
)
def device(target: Target) -> None:
    with opened(target) as rig:
        made = torch.arange(6, device=rig.device).float()
        expect(made.device == rig.zeros(1).device, "arenas and device(index) are on different devices")
        expect(made.cpu().tolist() == [0, 1, 2, 3, 4, 5], "a tensor made on the device is wrong on the host")
        for index in range(rig.facts.count):
            other = rig.platform.device(index)
            expect((torch.ones(3, device=other) + 1).cpu().tolist() == [2, 2, 2], f"device {index} does not add")


@check(
    "platform.dtypes",
    level=1,
    clause="platform/1.0: facts: dtypes are those the device computes in",
    explain="A dtype is declared that torch has no kernels for on this device.",
)
def dtypes(target: Target) -> Figures:
    with opened(target) as rig:
        for name in sorted(rig.facts.dtypes):
            dtype = DTYPES[name]
            x = torch.eye(4, device=rig.device).to(dtype)
            result = (x @ (x + x)).float().cpu()
            expect(torch.equal(result, 2 * torch.eye(4)), f"{name} does not multiply matrices", observed=result)
        return {"dtypes": len(rig.facts.dtypes)}


@check(
    "platform.host_buffer",
    level=1,
    clause="platform/1.0: host_buffer: zeroed host memory",
    explain="Not zeroed, on the device, or another array than the one that copies see: the engine writes plans through "
    "its numpy view.",
)
def host_buffer(target: Target) -> None:
    with opened(target) as rig:
        for shape, dtype in (((5,), torch.int32), ((3, 4), torch.float32), ((2, 0), torch.int32)):
            for _ in range(3):
                buffer = rig.platform.host_buffer(shape, dtype)
                expect(buffer.device.type == "cpu", "the buffer is not host memory", observed=buffer.device)
                expect(buffer.shape == shape and buffer.dtype == dtype, "another shape or dtype", observed=buffer.shape)
                expect(not buffer.numpy().any(), "the buffer is not zeroed", observed=buffer.numpy().ravel()[:8])
                buffer.numpy().fill(7)
        buffer = rig.platform.host_buffer((4,), torch.int32)
        buffer.numpy()[:] = (1, 2, 3, 4)
        there = torch.zeros(4, dtype=torch.int32, device=rig.device)
        there.copy_(buffer, non_blocking=True)
        rig.wait()
        expect(there.tolist() == [1, 2, 3, 4], "a copy does not see what numpy wrote", observed=there.tolist())


@check(
    "platform.group_of_one",
    level=1,
    clause="platform/1.0: communicator: a group of one is always possible; each is in place or into a given tensor",
    explain="A group of one is the usual case: every collective is the identity, and none waits.",
)
def group_of_one(target: Target) -> None:
    with opened(target) as rig:
        group = rig.platform.communicator((0,), 0)
        tensor = torch.arange(4, device=rig.device).float()
        out = torch.full((4,), -1.0, device=rig.device)
        group.all_reduce(tensor)
        group.broadcast(tensor, 0)
        group.all_gather(out, tensor)
        group.barrier(SECONDS)
        for name, value in (("all_reduce or broadcast", tensor), ("all_gather", out)):
            expect(value.cpu().tolist() == [0, 1, 2, 3], f"{name} of one rank changes values", observed=value.cpu())
        group.abort()
