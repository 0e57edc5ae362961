"""What may be read and what may be written: poison, garbage, guards, strides, addresses beyond 32 bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from srtkit.spec.errors import OutOfMemory
from srtkit_conformance.check import Informational, Outcome, check, expect
from srtkit_conformance.kits.attention.case import LARGEST, rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step, ask, verify
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.kits.numeric.pool import bytes_of
from srtkit_conformance.target import Target

READABLE = "attention/1.0: page 0 and the unused tail of a row's last page may be read, never used"


@check(
    "attention.memory.tail",
    level=1,
    clause=READABLE,
    explain="A mask that is added to scores turns NaN where the garbage overflows (inf - inf): select, do not add. "
    "Or probabilities of 0 times an infinite value.",
)
def tail(target: Target) -> Outcome:
    """Garbage of ±1e4 and of the largest finite value behind every row's end and in page 0."""
    harness = Harness(target)
    page = harness.page
    rows = rows_of((page, 1), (page - 3, 1), (2 * page + 4, 1), (0, 1), (page + 2, 5), (0, page + 1))
    asked = [(1e4, harness.dtypes[0]), *((LARGEST, dtype) for dtype in harness.dtypes[:2])]
    cases = [harness.case(rows, leading=4, padding=2, garbage=garbage, dtype=dtype) for garbage, dtype in asked]
    return verify(harness, cases).figures()


@check(
    "attention.memory.unreferenced",
    level=1,
    clause="attention/1.0: pages that no row refers to hold anything, NaN included",
    explain="One page too many is read, by the next page id instead of the page table, or past a row's end.",
)
def unreferenced(target: Target) -> Outcome:
    """Rows that end exactly with a page, and the next page in memory is NaN; a row before the pool's unused end."""
    harness = Harness(target)
    page = harness.page
    cases = [
        harness.case(rows, leading=len(rows), permuted=False)
        for rows in (rows_of((2 * page - 1, 1)), rows_of((page - 1, 1), (3 * page - 1, 1)))
    ]
    cases.append(harness.case(rows_of((page, page), (0, 2 * page)), permuted=False))
    return verify(harness, cases).figures()


@check(
    "attention.memory.before_window",
    level=1,
    clause="attention/1.0: tokens before every query's window may have been freed: their pages hold anything",
    explain="All earlier tokens are read and those before the window masked: 0 times NaN is NaN.",
)
def before_window(target: Target) -> Outcome:
    """NaN in the pages wholly before the window."""
    harness = Harness(target)
    rows = rows_of((90, 1), (70, 1), (50, 33))
    case = harness.case(rows, leading=2, window=24, page=min(harness.can.page_sizes))
    if not harness.has("window"):
        return ask(harness, case, "the feature window")
    return verify(harness, [case]).figures()


@check(
    "attention.memory.store",
    level=1,
    clause="attention/1.0: store mutates the layer's planes at the view's slot mapping and nothing else",
    explain="A slot written twice or beside its place, a whole page rewritten, padding written outside page 0.",
)
def store(target: Target) -> Outcome:
    """Bytes that changed: in the step's pages alone, and no more of a page than its new tokens take."""
    harness = Harness(target)
    page = harness.page
    seen = 0
    for padding in (0, 2):
        case = harness.case(rows_of((page + 3, 1), (page - 1, 1), (2, page), (0, 5)), leading=2, padding=padding)
        step = Step(harness.rig(case), case)
        before = {name: bytes_of(plane) for name, plane in step.layer.planes.items()}
        step.fill()
        expect(_same(before, step.layer.planes), "fill changed the planes")
        step.store()
        written = torch.bincount(step.view.slot_mapping.cpu().long() // page, minlength=step.n_pages)
        for plane in step.rig.layout.planes:
            changed = (bytes_of(step.layer.planes[plane.name]) != before[plane.name]).sum(1).cpu()
            strays = torch.nonzero(changed.bool() & (written == 0)).flatten().tolist()
            expect(not strays, f"store changed plane {plane.name} in pages that get no token", observed=strays)
            if plane.page_bytes % page == 0:
                over = int((changed - written * (plane.page_bytes // page)).max())
                expect(over <= 0, f"store changed {over} bytes too many in a page of plane {plane.name}", observed=over)
            seen += int(changed.sum())
    return {"bytes changed": seen}


@check(
    "attention.memory.inputs",
    level=1,
    clause="attention/1.0: attend writes out and lse only; store the planes; fill the plan",
    explain="q scaled in place, page tables rewritten into the batch's own tensors, new entries normalised in place.",
)
def inputs(target: Target) -> Outcome:
    """Every tensor that is given: unchanged after fill, store and attend; planes unchanged by attend."""
    harness = Harness(target)
    case = harness.case(rows_of((40, 1), (17, 1), (20, 9), (0, 5)), leading=2, sinks=harness.has("sinks"))
    step = Step(harness.rig(case), case)
    given = _given(step)
    before = {name: bytes_of(tensor) for name, tensor in given.items()}
    step.fill()
    step.store()
    planes = {name: bytes_of(plane) for name, plane in step.layer.planes.items()}
    step.attend(fresh=True)
    for name, tensor in given.items():
        expect(torch.equal(bytes_of(tensor), before[name]), f"{name} was changed")
    expect(_same(planes, step.layer.planes), "attend changed the planes")
    return {"tensors": len(given)}


@check(
    "attention.memory.slices",
    level=1,
    clause="attention/1.0: q, k and v may be slices of one fused projection",
    explain="A row stride of heads * head_dim is assumed; models hand in views of their fused qkv output.",
)
def slices(target: Target) -> Outcome:
    """q, k and v as slices of one tensor, with fresh keys and without."""
    harness = Harness(target)
    rows = rows_of((80, 1), (12, 1), (0, 25), (65, 20), (0, 9), (0, 9))
    margins = Margins()
    cases = [harness.case(rows, leading=2, fused=True), harness.case(rows[:2], leading=2, fused=True)]
    for fresh in (False, True):
        verify(harness, cases, margins, fresh=fresh)
    return margins.figures()


@check(
    "attention.memory.page_stride",
    level=1,
    clause="attention/1.0: any_page_stride: pages of one layer need not be adjacent",
    explain="The page's size is taken for the stride; pools that interleave layers then read the other layer.",
)
def page_stride(target: Target) -> Outcome:
    """Every other page of the pool belongs to another layer and is full of NaN: neither read nor written."""
    harness = Harness(target)
    case = harness.case(rows_of((80, 1), (33, 1), (20, 21)), leading=2, adjacent=False)
    rig = harness.rig(case)
    if not rig.layout.any_page_stride:
        return Informational("its layout needs adjacent pages, and core keeps to that")
    step, margins = Step(rig, case), Margins()
    step.run().check(margins)
    for name, plane in step.layer.planes.items():
        between = plane.as_strided(plane.shape, plane.stride(), plane.storage_offset() - plane.stride(0) // 2)
        expect(bool(between[1:].float().isnan().all()), f"the other layer's pages of plane {name} were written")
    return margins.figures()


@check(
    "attention.memory.page_table",
    level=1,
    clause="attention/1.0: page_table [R, max_pages] may be the left part of a wider table",
    explain="The table's width is taken for its row stride: from the second row on other rows' pages are read.",
)
def page_table(target: Target) -> Outcome:
    """A table whose rows stand farther apart than its width."""
    harness = Harness(target)
    case = harness.case(rows_of((40, 1), (33, 1), (20, 21)), leading=2)
    step = Step(harness.rig(case, harness.case(rows_of((300, 1)))), case)
    width = step.view.page_table.shape[1]
    assert step.view.page_table.stride(0) > width, "the table is not the left part of a wider one"
    margins = Margins()
    step.run().check(margins)
    return margins.figures()


@check(
    "attention.memory.int64",
    level=2,
    clause="attention/1.0: index tensors are int32 and addresses are computed in int64",
    explain="page * page_size * heads * head_dim in 32 bits wraps in large pools.",
    isolated=True,
    seconds=120,
)
def int64(target: Target) -> Outcome:
    """Pages whose offset in their plane exceeds 2 ** 31 elements. Needs two planes of as many elements."""
    harness = Harness(target)
    narrow = sorted(name for name in harness.can.kv_dtypes if name.startswith("float8"))
    changes = {"kv_dtype": narrow[0]} if narrow else {}
    plain = harness.case(rows_of((40, 1), (20, 9)), leading=1, **changes)
    layout = harness.layouts(plain.spec, plain.page)[0]
    elements = min(torch.Size(plane.shape).numel() for plane in layout.planes)
    first = (1 << 31) // elements + 1
    case = harness.case(plain.rows, leading=1, first_page=first, **changes)
    needed = first * layout.page_bytes
    try:
        return verify(harness, [case]).figures()
    except OutOfMemory as error:
        return Informational(f"not tried: needs a pool of {needed >> 20} MiB ({error.cause})", {"MiB": needed >> 20})


def _given(step: Step) -> Mapping[str, Tensor]:
    batch, view, layer = step.batch, step.view, step.layer
    given = {"q": step.q, "the first entry": step.new[0], "the second entry": step.new[1]}
    given |= {"cu_q": batch.cu_q, "context": batch.context, "positions": batch.positions, "slots": batch.slots}
    given |= {"page_table": view.page_table, "slot_mapping": view.slot_mapping}
    given |= {"host_q": torch.from_numpy(batch.host_q), "host_context": torch.from_numpy(batch.host_context)}
    given |= {"host_pages": torch.from_numpy(view.host_pages)}
    return given | ({} if layer.sinks is None else {"sinks": layer.sinks})


def _same(before: Mapping[str, Tensor], planes: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(bytes_of(plane), before[name]) for name, plane in planes.items())
