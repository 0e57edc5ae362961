"""Kinds of steps, which are data: one result whatever the batch around a row, its order, its chunks and its pages."""

from __future__ import annotations

import itertools

import hypothesis
import torch
from hypothesis import strategies as st

from srtkit.spec.attention import LayerHandle, Rows
from srtkit_conformance.check import Outcome, check, expect
from srtkit_conformance.kits.attention.case import Row, rows_of
from srtkit_conformance.kits.attention.content import Content
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step, verify
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.target import Target

MIXED = rows_of((80, 1), (12, 1), (0, 25), (65, 20), (64, 1))


@check(
    "attention.steps.rows",
    level=1,
    clause="attention/1.0: attend covers the tokens of `rows`; leading rows stand first",
    explain="LEADING computes all rows, or REST starts at the first token: another call's results are overwritten.",
)
def rows(target: Target) -> Outcome:
    """LEADING and REST each write their own tokens, and all of them."""
    harness = Harness(target)
    case = harness.case(MIXED, leading=2)
    step = Step(harness.rig(case), case)
    step.fill()
    step.store()
    margins = Margins()
    for which in (Rows.LEADING, Rows.REST, Rows.ALL):
        step.attend(rows=which).check(margins)
    return margins.figures()


@check(
    "attention.steps.one_token",
    level=1,
    clause="attention/1.0: the kind of a step is data; a row of one query gives the same as leading or rest",
    explain="The decode kernel and the prefill kernel differ: scale, mask of the last token, dtype of probabilities.",
)
def one_token(target: Target) -> Outcome:
    """The same rows as leading and as rest."""
    harness = Harness(target)
    margins = Margins()
    ones = rows_of((99, 1), (0, 1), (31, 1), (64, 1))
    for leading in (len(ones), 0):
        case = harness.case(ones, leading=leading)
        Step(harness.rig(case), case, content=Content(harness.case(ones), target.rng())).run().check(margins)
    return margins.figures()


@check(
    "attention.steps.uniform",
    level=1,
    clause="attention/1.0: leading rows have q_len query tokens each, up to max_q_len_decode",
    explain="A decode kernel that takes all of a row's queries for its last one, or masks them top-left.",
)
def uniform(target: Target) -> Outcome:
    """Leading rows of several queries, as when drafts are verified."""
    harness = Harness(target)
    n = min(4, harness.can.max_q_len_decode)
    rows = rows_of((50, n), (0, n), (harness.page - 2, n), (20, 9))
    margins = Margins()
    case = harness.case(rows, leading=3)
    step = Step(harness.rig(case), case)
    step.run().check(margins)
    step.attend(rows=Rows.LEADING).check(margins)
    return margins.figures()


@check(
    "attention.steps.padding",
    level=1,
    clause="attention/1.0: padding rows have slot 0, length 1, query 1 and page 0",
    explain="Real rows disturbed by padding, or NaN in its results, which reach the next layer.",
)
def padding(target: Target) -> Outcome:
    """Padding after decode rows and after mixed rows."""
    harness = Harness(target)
    cases = [
        harness.case(rows_of((40, 1), (17, 1), (64, 1)), leading=3, padding=5),
        harness.case(MIXED, leading=2, padding=3),
    ]
    return verify(harness, cases).figures()


@check(
    "attention.steps.chunks",
    level=1,
    clause="attention/1.0: masks are bottom-right aligned; a prompt in chunks gives the prompt",
    explain="The cached prefix is left out, or the chunk is masked as if it began at position 0.",
)
def chunks(target: Target) -> Outcome:
    """A prompt at once, and in chunks that begin and end inside pages: one pool, step after step."""
    harness = Harness(target)
    margins = Margins()
    n = 70
    bounds = (0, 16, 17, 50, n)
    whole = harness.case(rows_of((0, n)))
    verify(harness, [whole], margins)
    content = Content(whole, target.rng("chunks"))
    for start, stop in itertools.pairwise(bounds):
        case = harness.case(rows_of((start, stop - start)))
        part = Content(case, target.rng()).take(content.q[start:stop], [content.new])
        Step(harness.rig(case), case, content=part).run().check(margins)
    return margins.figures()


@check(
    "attention.steps.order",
    level=1,
    clause="attention/1.0: page ids carry no order, and rows none among themselves",
    explain="Pages taken for adjacent or ascending; a row index used in place of a page table row.",
)
def order(target: Target) -> Outcome:
    """Ascending pages, shuffled pages, and the rows reversed."""
    harness = Harness(target)
    rows = rows_of((130, 1), (65, 1), (40, 20), (0, 9))
    cases = [
        harness.case(rows, leading=2, permuted=False),
        harness.case(rows, leading=2),
        harness.case(rows[::-1]),
    ]
    return verify(harness, cases).figures()


@check(
    "attention.steps.alone",
    level=1,
    clause="attention/1.0: batch_invariant: a row's result does not depend on the other rows",
    explain="Splits chosen by the number of rows, padding to the longest, or a shared prefix that is computed apart.",
)
def alone(target: Target) -> Outcome:
    """Rows by themselves and together: equal bit by bit where that is declared, else both within the gates."""
    harness = Harness(target)
    shared = -(-1040 // harness.page)
    stored = shared * harness.page
    rows = rows_of((stored + 7, 1), (stored + 1, 1, 0, shared), (20, 1))
    case = harness.case(rows, leading=3, kv_heads=1)
    margins = Margins()
    content = Content(case, target.rng("alone"))
    together = Step(harness.rig(case), case, content=content).run()
    together.check(margins)
    for number, row in enumerate(rows):
        single = harness.case([Row(row.stored, row.n_query)], leading=1, kv_heads=1)
        part = Content(single, target.rng()).take(content.q[number : number + 1], [content.tokens_of(number)])
        result = Step(harness.rig(single), single, content=part).run()
        result.check(margins)
        if harness.can.batch_invariant:
            same = torch.equal(result.out[0], together.out[number])
            expect(same, f"row {number} differs from its result alone, and batch_invariant is declared")
    return margins.figures()


@check(
    "attention.steps.prefix_groups",
    level=1,
    clause="attention/1.0: prefix groups are a hint: ignoring it changes speed only",
    explain="The shared part is attended for the first member only, twice, or with another member's own pages.",
)
def prefix_groups(target: Target) -> Outcome:
    """Rows that share pages, with the hint and without."""
    harness = Harness(target)
    margins = Margins()
    for tokens in (3 * harness.page, 600):
        pages = -(-tokens // harness.page)
        shared = pages * harness.page
        rows = rows_of((shared + 5, 1), (shared + 9, 1, 0, pages), (shared + 40, 1, 0, pages), (20, 1))
        case = harness.case(rows, leading=4, kv_heads=1)
        step = Step(harness.rig(case), case)
        step.run().check(margins)
        step.group(0, 3, pages)
        step.run().check(margins)
    return margins.figures()


@check(
    "attention.steps.fresh",
    level=1,
    clause="attention/1.0: fresh is a hint: this step's (k, v) as given to store",
    explain="fresh taken for all keys of the row, so that a cached prefix is left out.",
)
def fresh(target: Target) -> Outcome:
    """With fresh keys at hand, for prompts, chunks and decode."""
    harness = Harness(target)
    cases = [
        harness.case(MIXED, leading=2),
        harness.case(rows_of((0, 40), (0, 9), (0, 9))),
        harness.case(rows_of((0, 33))),
    ]
    return verify(harness, cases, fresh=True).figures()


@check(
    "attention.steps.refill",
    level=1,
    clause="attention/1.0: fill prepares one step; nothing of the fill before remains",
    explain="Rows, lengths or indices of a larger fill before are left in the plan's buffers.",
)
def refill(target: Target) -> Outcome:
    """One plan: a large step, a smaller one, rows of the same number but shorter, and back."""
    harness = Harness(target)
    cases = [
        harness.case(rows_of((130, 1), (65, 1), (99, 1), (40, 20), (0, 33)), leading=3),
        harness.case(rows_of((5, 1), (0, 3)), leading=1),
        harness.case(rows_of((3, 1), (17, 1), (1, 1), (0, 2), (9, 4)), leading=3),
    ]
    rig = harness.rig(*cases)
    large, *smaller = (Step(rig, case) for case in cases)
    margins = Margins()
    for step in (large, *smaller, large, smaller[0]):
        step.plan = large.plan
        step.run().check(margins)
    return margins.figures()


@check(
    "attention.steps.two_plans",
    level=1,
    clause="attention/1.0: any number of plans may be alive; the backend holds no state of a step",
    explain="Lengths, indices or workspaces kept in the backend: the plan filled last wins.",
)
def two_plans(target: Target) -> Outcome:
    """Two plans filled, then used in turn."""
    harness = Harness(target)
    cases = [
        harness.case(rows_of((90, 1), (33, 20)), leading=1),
        harness.case(rows_of((12, 1), (0, 5), (40, 3)), leading=1),
    ]
    rig = harness.rig(*cases)
    steps = [Step(rig, case) for case in cases]
    margins = Margins()
    for step in steps:
        step.fill()
    for step in steps:
        step.store()
    for step in (*steps, *steps):
        step.attend().check(margins)
    return margins.figures()


@check(
    "attention.steps.layers",
    level=1,
    clause="attention/1.0: one fill serves every layer of the group; planes, sinks and scales are the handle's",
    explain="Addresses of the first layer's planes are kept, or sinks of one layer serve all.",
)
def layers(target: Target) -> Outcome:
    """Two layers with planes and sinks of their own, in turn, on one plan."""
    harness = Harness(target)
    case = harness.case(rows_of((50, 1), (33, 9)), leading=1, permuted=False, sinks=harness.has("sinks"))
    rig = harness.rig(case)
    first, second = (Step(rig, case, salt) for salt in ("first", "second"))
    handle = second.layer
    second.layer = LayerHandle(1, handle.planes, handle.sinks, handle.scales)
    second.plan = first.plan
    margins = Margins()
    first.fill()
    for step in (first, second):
        step.store()
        step.attend().check(margins)
    first.attend().check(margins)
    return margins.figures()


@check(
    "attention.steps.lifecycle",
    level=1,
    clause="attention/1.0: a closed plan is not used again; a backend can be built anew after close",
    explain="close frees what another plan or backend uses, or new_plan works once only.",
)
def lifecycle(target: Target) -> Outcome:
    """Close a plan and go on with another; close the backend and build it again."""
    harness = Harness(target)
    case = harness.case(MIXED, leading=2)
    margins = Margins()
    rig = harness.rig(case)
    for _ in range(2):
        step = Step(rig, case)
        step.run().check(margins)
        step.plan.close()
    rig.backend.close()
    Step(harness.rig(case), case).run().check(margins)
    return margins.figures()


@check(
    "attention.steps.any",
    level=2,
    clause="attention/1.0: the kind of a step is data; there is no mode",
    explain="A combination of lengths that the directed checks do not hold; the message names the smallest found.",
    seconds=300,
)
def any_step(target: Target) -> Outcome:
    """Random steps: rows, shared prefixes, windows, padding; shrunk to the smallest that fails."""
    harness = Harness(target)
    margins = Margins()
    sizes = [size for size in (1, 7, 16, 64) if size in harness.can.page_sizes] or [harness.page]
    windows = [0, 0, 5, 40] if harness.has("window") else [0]
    row = st.tuples(st.sampled_from([0, 0, 7, 16, 60, 130]), st.sampled_from([1, 1, 2, 5, 64]))

    @hypothesis.seed(target.seed)
    @hypothesis.settings(
        max_examples=20,
        deadline=None,
        database=None,
        phases=(hypothesis.Phase.generate, *([] if target.mutant else [hypothesis.Phase.shrink])),
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @hypothesis.given(
        rows=st.lists(row, min_size=1, max_size=4),
        page=st.sampled_from(sizes),
        window=st.sampled_from(windows),
        padding=st.integers(0, 2),
        with_fresh=st.booleans(),
    )
    def one(rows: list[tuple[int, int]], page: int, window: int, padding: int, with_fresh: bool) -> None:
        leading = next((i for i, (_, n) in enumerate(rows) if n != 1), len(rows))
        case = harness.case(rows_of(*rows), page=page, window=window, padding=padding, leading=leading, kv_heads=1)
        step = Step(harness.rig(case), case)
        step.run(fresh=with_fresh).check(margins)

    one()
    return margins.figures()
