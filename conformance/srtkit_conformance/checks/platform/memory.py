"""A platform's memory: arenas, figures, what does not fit, and giving an arena back."""

from __future__ import annotations

import re
from typing import get_args

import torch

from srtkit.spec.capabilities import No
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.platform import ArenaTag
from srtkit_conformance.check import Figures, Outcome, Refused, check, expect
from srtkit_conformance.kits.platform.rig import opened, raised, values
from srtkit_conformance.target import Target

TAGS: tuple[ArenaTag, ...] = get_args(ArenaTag)
DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.float8_e4m3fn)
MIB = 1 << 20


@check(
    "platform.allocate",
    level=1,
    clause="platform/1.0: allocate: zeroed device memory of an arena",
    explain="Memory that was used before comes back with its contents; or shape, dtype or strides are others.",
)
def allocate(target: Target) -> None:
    with opened(target) as rig:
        for dtype in DTYPES:
            for tag in TAGS:
                block = rig.platform.allocate(tag, (3, 5, 16), dtype)
                expect(block.shape == (3, 5, 16) and block.dtype == dtype, "another shape or dtype", observed=block)
                expect(block.is_contiguous(), "the block is not contiguous", observed=block.stride())
                raw = block.view(torch.uint8)
                expect(not raw.cpu().any(), f"a block of {tag} in {dtype} is not zeroed")
                raw.fill_(0x55)
                del block, raw
        empty = rig.platform.allocate("workspace", (0, 4), torch.int32)
        expect(empty.shape == (0, 4), "an empty block has another shape", observed=empty.shape)


@check(
    "platform.blocks_apart",
    level=1,
    clause="platform/1.0: allocate: device memory of an arena",
    explain="Two live blocks share memory, within an arena or between two: an offset or an alignment is wrong.",
)
def blocks_apart(target: Target) -> Figures:
    with opened(target) as rig:
        sizes = [1, 3, 64, 1000, 4097]
        blocks = [rig.platform.allocate(tag, (n,), torch.uint8) for tag in TAGS for n in sizes]
        for number, block in enumerate(blocks):
            block.fill_(number + 1)
        for number, block in enumerate(blocks):
            seen = values(block)
            expect(seen == [number + 1], f"block {number} holds what was written to others", observed=seen)
        return {"blocks": len(blocks)}


@check(
    "platform.figures",
    level=1,
    clause="platform/1.0: MemoryFigures: total, free now, and peak used by this process",
    explain="The figures size the KV pools. The total is that of the facts, free is at most that, and the peak counts "
    "memory that was touched, also after it was given back.",
)
def figures(target: Target) -> Figures:
    with opened(target) as rig:
        index = target.device_index
        n_bytes = min(64 * MIB, rig.platform.memory(index).free // 4)
        block = rig.platform.allocate("kv", (n_bytes,), torch.uint8).fill_(1)
        rig.wait()
        during = rig.platform.memory(index)
        del block
        after = rig.platform.memory(index)
        for one in (during, after):
            expect(0 <= one.free <= one.total, "free is not between 0 and total", observed=one)
            expect(one.total == rig.facts.memory_bytes, "total differs from the facts", observed=one.total)
            expect(one.peak >= n_bytes, "the peak is less than what was in use", observed=one.peak, limit=n_bytes)
        expect(after.peak >= during.peak, "the peak falls", observed=after.peak, limit=during.peak)
        return {"total": after.total, "free": after.free, "peak": after.peak}


@check(
    "platform.out_of_memory",
    level=1,
    clause="platform/1.0: allocate raises OutOfMemory with both figures",
    explain="The library's own error comes through, the message does not say what was wanted and what there is, or the "
    "device is unusable afterwards.",
)
def out_of_memory(target: Target) -> None:
    with opened(target) as rig:
        wanted = 4 * rig.facts.memory_bytes
        kept = rig.zeros(4).fill_(3)
        error = raised(OutOfMemory, lambda: rig.platform.allocate("kv", (4, wanted // 4), torch.uint8), "too much")
        numbers = {one.replace(",", "") for one in re.findall(r"\d[\d,]*", error.cause)}
        expect(str(wanted) in numbers, "the cause does not say what was wanted", observed=error.cause, limit=wanted)
        expect(len(numbers) >= 2, "the cause does not say what there is", observed=error.cause)
        expect(rig.zeros(4).add_(1).cpu().tolist() == [1] * 4, "allocating does not work afterwards")
        expect(kept.cpu().tolist() == [3] * 4, "what was there before has changed")


@check(
    "platform.release",
    level=1,
    clause="platform/1.0: release: give an arena's memory back; restore brings it to the same addresses, or No",
    explain="Captured graphs and attention plans hold addresses: a restored arena that lies elsewhere makes them read "
    "freed memory. Other arenas must keep their contents.",
)
def release(target: Target) -> Outcome:
    with opened(target) as rig:
        weights = rig.platform.allocate("weights", (64,), torch.int32).fill_(7)
        blocks = [rig.platform.allocate("kv", (n, 1024), torch.int32).fill_(1) for n in (1, 64)]
        places = [block.data_ptr() for block in blocks]
        answer = rig.platform.release("kv")
        if isinstance(answer, No):
            expect(bool(answer.reason), "a refused release gives no reason")
            expect(bool((blocks[1].cpu() == 1).all()), "a refused release has lost the contents")
            return Refused(answer.reason)
        expect(values(weights) == [7], "releasing one arena has changed another")
        rig.platform.restore("kv")
        expect([block.data_ptr() for block in blocks] == places, "the restored arena lies at other addresses")
        for number, block in enumerate(blocks):
            block.fill_(number)
        for number, block in enumerate(blocks):
            expect(values(block) == [number], "the restored arena does not hold what is written")
        expect(values(weights) == [7], "restoring one arena has changed another")
        return {}
