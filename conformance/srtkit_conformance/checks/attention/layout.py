"""What the descriptor says of pages and of itself: pure functions, and answers that agree with each other."""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit.spec.attention import AttentionCapabilities, AttentionSpec
from srtkit.spec.capabilities import No, Yes
from srtkit.spec.kv import ITEM_BYTES, KVLayout
from srtkit_conformance.check import Informational, Outcome, check, expect
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.content import stored
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step, verify
from srtkit_conformance.target import Target

FEATURES = frozenset({"window", "soft_cap", "sinks", "non_causal", "mla", "fp8_kv", "tree_mask"})
"""All features of attention/1.0."""
PAGE_SIZES = (1, 7, 16, 32, 64, 128, 256, 512)
OVER_READ = 256
TOKEN_MAJOR = {"nhd/1": ("k", "v"), "latent/1": ("latent", "rope")}
"""Layouts of the contract whose planes are [page, token, *entry]."""


@check(
    "attention.layout.pure",
    level=0,
    clause="attention/1.0: capabilities and kv_layouts are pure functions of data",
    explain="A cache, a counter or a probe of the device behind the function. Ranks and `srt explain` call it at "
    "other times and places and must get the same answer.",
)
def pure(target: Target) -> Outcome:
    """The same question twice, others in between."""
    harness = Harness(target)
    questions = [(spec, page) for spec in _specs(harness) for page in PAGE_SIZES]
    first = [list(harness.layouts(spec, page)) for spec, page in questions]
    again = [list(harness.layouts(spec, page)) for spec, page in reversed(questions)][::-1]
    for (spec, page), one, other in zip(questions, first, again, strict=True):
        expect(one == other, f"kv_layouts changes its answer for pages of {page} and {spec}", observed=other, limit=one)
    facts = target.facts
    expect(harness.descriptor.capabilities(facts) == harness.can, "capabilities changes its answer")
    return {"questions": len(questions)}


@check(
    "attention.layout.capabilities",
    level=0,
    clause="attention/1.0: features have names, answers are Yes or No(reason); unset means no",
    explain="A misspelt feature never matches a spec. A bool in place of YES or No(reason) has no reason to show.",
)
def capabilities(target: Target) -> Outcome:
    """Types, names and ranges of what is declared."""
    can = Harness(target).can
    unknown = sorted(can.features - FEATURES)
    expect(not unknown, f"attention/1.0 has no feature {', '.join(unknown)}", observed=unknown)
    for name in ("lse", "dense", "advance", "move_slots", "prefix_groups", "store_rotated", "batch_invariant"):
        answer = vars(can)[name]
        expect(isinstance(answer, Yes | No), f"{name} is {answer!r}, neither YES nor No(reason)")
        expect(bool(answer) or bool(answer.reason), f"{name} is a no without a reason")
    expect(bool(can.dtypes), "declares no dtype")
    beyond = sorted(can.dtypes - target.facts.dtypes)
    expect(not beyond, f"declares {', '.join(beyond)}, which the device does not compute in")
    expect(bool(can.page_sizes) and min(can.page_sizes) >= 1, "declares no page size, or one below 1")
    expect(len(set(can.page_sizes)) == len(can.page_sizes), "declares a page size twice")
    expect(bool(can.head_dims) and can.max_gqa_ratio >= 1 and can.max_q_len_decode >= 1, "declares no shape")
    fp8 = any(name.startswith("float8") for name in can.kv_dtypes)
    expect(fp8 == ("fp8_kv" in can.features), "the feature fp8_kv and a float8 KV dtype must be declared together")
    return None


@check(
    "attention.layout.agrees",
    level=0,
    clause="attention/1.0: kv_layouts lists acceptable layouts, [] if none; a layout holds the page asked for",
    explain="A page size is declared and has no layout, or the other way round; planes of another dtype than "
    "kv_dtype, too small for the entries, or kernel pages that do not divide the page.",
)
def agrees(target: Target) -> Outcome:
    """Layouts for declared and undeclared page sizes."""
    harness = Harness(target)
    sizes = set(harness.can.page_sizes)
    asked = sorted(sizes & set(PAGE_SIZES) | {harness.page, max(sizes)})
    for spec in _specs(harness):
        for page in asked:
            layouts = harness.layouts(spec, page)
            expect(bool(layouts), f"declares pages of {page} and offers no layout for {spec}")
            for layout in layouts:
                _sound(layout, spec, page)
        for page in sorted(set(PAGE_SIZES) - sizes):
            expect(not harness.layouts(spec, page), f"offers a layout for pages of {page}, which are not declared")
    return {"page sizes": len(asked)}


def _sound(layout: KVLayout, spec: AttentionSpec, page: int) -> None:
    expect(layout.page_tokens == page, f"{layout.name} has pages of {layout.page_tokens}, asked for {page}")
    expect("/" in layout.name, f"the layout's name {layout.name!r} has no version, as in nhd/1")
    divide = all(page % size == 0 for size in layout.kernel_pages)
    expect(bool(layout.kernel_pages) and divide, f"kernel pages {layout.kernel_pages} do not divide {page}")
    expect(0 <= layout.over_read <= OVER_READ, f"over_read is {layout.over_read}, at most {OVER_READ} are allowed")
    dtypes = {plane.dtype for plane in layout.planes}
    expect(spec.kv_dtype in dtypes, f"no plane of {layout.name} has dtype {spec.kv_dtype}", observed=sorted(dtypes))
    elements = spec.kv_heads * (spec.head_dim + (0 if spec.mla else spec.v_head_dim))
    least = page * elements * ITEM_BYTES[spec.kv_dtype]
    expect(layout.page_bytes >= least, f"{layout.name} is too small", observed=layout.page_bytes, limit=least)


@check(
    "attention.layout.page_sizes",
    level=1,
    clause="attention/1.0: page_sizes are the pool pages it takes",
    explain="A kernel that needs powers of two, or whose tile is longer than the page; the last page of a row "
    "when the row ends exactly with a page.",
)
def page_sizes(target: Target) -> Outcome:
    """Rows that end before, at and after the end of a page, for declared sizes."""
    harness = Harness(target)
    sizes = sorted(set(harness.can.page_sizes) & set(PAGE_SIZES[:7]) | {harness.can.page_sizes[0]})
    cases = []
    for page in sizes:
        rows = rows_of((page - 1, 1), (2 * page - 1, 1), (page, 1), (0, page), (page - 1, 4))
        cases.append(harness.case(rows, page=page, leading=3, kv_heads=1))
    return verify(harness, cases).figures()


@check(
    "attention.layout.content",
    level=1,
    clause="attention/1.0: two parts agree on a layout by its name; nhd/1 and latent/1 are [page, token, *entry]",
    explain="Planes swapped, tokens in another order, values scaled: store and attend of one plugin agree with each "
    "other, and with no other part that reads or writes these pages.",
)
def content(target: Target) -> Outcome:
    """What `store` leaves in the planes of a layout of the contract, token by token."""
    harness = Harness(target)
    seen = 0
    for changes in [{}, *([{"mla": harness.mla}] if harness.has("mla") else [])]:
        case = harness.case(rows_of((harness.page + 3, 5), (0, 9)), **changes)
        rig = harness.rig(case)
        names = TOKEN_MAJOR.get(rig.layout.name)
        if names is None:
            continue
        step = Step(rig, case)
        step.fill()
        step.store()
        slots = step.view.slot_mapping.long().cpu()
        for name, given in zip(names, step.content.new, strict=True):
            plane = step.layer.planes[name].cpu()
            expect(plane.shape[1] == case.page, f"plane {name} of {rig.layout.name} has shape {tuple(plane.shape)}")
            found: Tensor = plane[slots // case.page, slots % case.page].float()
            wanted = stored(given, case.spec, None).reshape(found.shape)
            expect(
                torch.equal(found, wanted), f"plane {name} of {rig.layout.name} does not hold the tokens at their slots"
            )
        seen += 1
    return {"layouts": seen} if seen else Informational("its layouts are its own; only itself can read them")


@check(
    "attention.layout.parts",
    level=1,
    clause="attention/1.0: parts() agrees with the capabilities and is constant over the backend's life",
    explain="A capability says yes and parts() has None, or the other way round.",
)
def parts(target: Target) -> Outcome:
    """Each optional call is there exactly if it is declared."""
    harness = Harness(target)
    backend = harness.rig(harness.case(rows_of((20, 1)))).backend
    found = backend.parts()
    for name, answer, part in (
        ("dense", harness.can.dense, found.dense),
        ("advance", harness.can.advance, found.advance),
        ("move_slots", harness.can.move_slots, found.mover),
        ("store_rotated", harness.can.store_rotated, found.rotated),
    ):
        expect(bool(answer) == (part is not None), f"{name} is declared {answer} and parts() has {part!r}")
    expect(backend.parts() == found, "parts() changes")
    backend.close()
    return None


def _specs(harness: Harness) -> list[AttentionSpec]:
    """Specs that it declares to cover: plain, fp8, latent."""
    can: AttentionCapabilities = harness.can
    rows = rows_of((20, 1))
    cases = [harness.case(rows)]
    cases += [harness.case(rows, kv_dtype=name) for name in sorted(can.kv_dtypes) if name.startswith("float8")]
    if harness.has("mla"):
        cases.append(harness.case(rows, mla=harness.mla, ratio=min(16, can.max_gqa_ratio)))
    return [case.spec for case in cases]
