"""The optional calls: dense attention, gather, merge, moving slots, advance, rotating store. Right, or absent."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import DenseAttention, RotatedStore, Rotation
from srtkit.spec.capabilities import No
from srtkit.spec.layers import DTYPES
from srtkit_conformance.check import Failed, Outcome, Refused, check, expect
from srtkit_conformance.kits.attention.case import Case, rows_of
from srtkit_conformance.kits.attention.content import Content
from srtkit_conformance.kits.attention.gold import attend_row, visible
from srtkit_conformance.kits.attention.harness import Harness, Rig
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.numeric.gates import Margins, Truth, relative
from srtkit_conformance.kits.numeric.pool import bytes_of
from srtkit_conformance.kits.ops import gold
from srtkit_conformance.kits.ops.cases import Case as OpCase
from srtkit_conformance.kits.threads import one_thread
from srtkit_conformance.target import Target


def _dense(rig: Rig) -> DenseAttention:
    """The part; declared and absent is a failure."""
    part = rig.backend.parts().dense
    if part is None:
        raise Failed("dense is declared and parts().dense is None")
    return part


def _absent(rig: Rig, answer: No, part: object) -> Outcome:
    expect(part is None, f"declared as a no ({answer.reason}) and there all the same")
    return Refused(answer.reason)


class DenseRows:
    """Rows of dense tensors: lengths of queries and keys, drawn and solved."""

    def __init__(
        self, rig: Rig, lengths: list[tuple[int, int]], salt: str, *, heads: int = 0, sizes: tuple[int, int]
    ) -> None:
        spec, device = rig.spec, rig.harness.device
        self.spec, self.dtype = spec, DTYPES[spec.dtype]
        self.lengths = lengths
        self._rng = rig.harness.target.rng(salt)
        n, m = (sum(column) for column in zip(*lengths, strict=True))
        size, v_size = sizes
        self.q = self._draw(n, heads or spec.q_heads, size)
        self.k = self._draw(m, heads or spec.kv_heads, size)
        self.v = self._draw(m, heads or spec.kv_heads, v_size)
        bounds = np.cumsum([(0, 0), *lengths], axis=0).astype(np.int32)
        self.cu = (torch.tensor(bounds[:, 0], device=device), torch.tensor(bounds[:, 1], device=device))
        self.device = device

    def run(self, dense: DenseAttention, causal: bool) -> tuple[Tensor, Tensor]:
        """out and lse of one call, on the CPU."""
        n, heads = self.q.shape[:2]
        out = torch.full((n, heads, self.v.shape[-1]), 7.0, dtype=self.dtype, device=self.device)
        lse = torch.full((n, heads), 7.0, device=self.device)
        tensors = [x.to(self.device) for x in (self.q, self.k, self.v)]
        dense.attend_dense(tensors[0], tensors[1], tensors[2], self.cu, out, causal=causal, lse=lse)
        return out.cpu(), lse.cpu()

    def check(self, dense: DenseAttention, causal: bool, margins: Margins, where: str) -> None:
        """Hold every row with keys against its solution; a row without keys must give 0 and a sum of none."""
        out, lse = self.run(dense, causal)
        q0 = k0 = 0
        for n, m in self.lengths:
            part, part_lse = out[q0 : q0 + n], lse[q0 : q0 + n]
            rows = self.q[q0 : q0 + n], self.k[k0 : k0 + m], self.v[k0 : k0 + m]
            q0, k0 = q0 + n, k0 + m
            if n and not m:
                expect(bool((part == 0).all()), f"{where}: a row without keys must give 0")
                expect(bool((part_lse == -torch.inf).all()), f"{where}: a row without keys must give lse -inf")
            elif n:
                see = visible(self.spec, m - n, n) if causal else torch.ones(n, m, dtype=torch.bool)
                with one_thread():
                    gold, same = attend_row(self.spec, rows, see), attend_row(self.spec, rows, see, rounded=self.dtype)
                margins.judge(Truth(*gold, *same, [slice(0, n)]), self.spec.dtype, part, part_lse, where)

    def _draw(self, *shape: int) -> Tensor:
        return torch.from_numpy(self._rng.standard_normal(shape, np.float32)).to(self.dtype)


@check(
    "attention.parts.dense",
    level=1,
    clause="attention/1.0: attend_dense masks bottom-right aligned; cu_q and cu_k bound the rows",
    explain="Top-left alignment shows where a row has more keys than queries; empty rows divide by zero.",
)
@torch.inference_mode()
def dense(target: Target) -> Outcome:
    """Causal and not; more keys than queries, empty rows; each declared dtype."""
    harness = Harness(target)
    margins = Margins()
    for dtype in harness.dtypes:
        rig = harness.rig(harness.case(rows_of((20, 1)), dtype=dtype))
        if isinstance(harness.can.dense, No):
            return _absent(rig, harness.can.dense, rig.backend.parts().dense)
        size = rig.spec.head_dim
        rows = DenseRows(rig, [(3, 8), (0, 1), (7, 7), (4, 0), (1, 30), (20, 41)], "dense", sizes=(size, size))
        for causal in (True, False):
            rows.check(_dense(rig), causal, margins, f"attend_dense in {dtype}, causal={causal}")
    return margins.figures()


@check(
    "attention.parts.dense_features",
    level=2,
    clause="attention/1.0: attend_dense applies the group's scale, window and soft cap; MLA takes full heads",
    explain="The dense kernel was bound with defaults instead of the group's spec.",
)
@torch.inference_mode()
def dense_features(target: Target) -> Outcome:
    """Window and soft cap, and for MLA heads of nope + rope with values of their own size."""
    harness = Harness(target)
    if isinstance(harness.can.dense, No):
        rig = harness.rig(harness.case(rows_of((20, 1))))
        return _absent(rig, harness.can.dense, rig.backend.parts().dense)
    margins = Margins()
    changes: list[dict[str, Any]] = [{"scale": 0.2}]
    changes += [{"window": 8}] if harness.has("window") else []
    changes += [{"soft_cap": 2.0}] if harness.has("soft_cap") else []
    for change in changes:
        rig = harness.rig(harness.case(rows_of((20, 1)), **change))
        size = rig.spec.head_dim
        rows = DenseRows(rig, [(7, 7), (3, 30), (20, 41)], "features", sizes=(size, size))
        rows.check(_dense(rig), True, margins, f"attend_dense with {change}")
    if harness.has("mla"):
        dims = harness.mla
        rig = harness.rig(harness.case(rows_of((20, 1)), mla=dims, ratio=min(16, harness.can.max_gqa_ratio)))
        sizes = (dims.nope + dims.rope, dims.v_head_dim)
        rows = DenseRows(rig, [(7, 7), (3, 30)], "mla", heads=rig.spec.q_heads, sizes=sizes)
        for causal in (True, False):
            rows.check(_dense(rig), causal, margins, f"attend_dense of MLA, causal={causal}")
    return margins.figures()


@check(
    "attention.parts.gather",
    level=1,
    clause="attention/1.0: gather copies stored tokens [start, stop) of a row to dense, dequantised; writes out only",
    explain="The range taken as pages, or relative to this step's tokens; fp8 read without its scale.",
)
@torch.inference_mode()
def gather(target: Target) -> Outcome:
    """Ranges that begin and end inside pages; plain, fp8 and latent entries: equal to what was stored."""
    harness = Harness(target)
    rows = rows_of((harness.page + 20, 1), (20, 9))
    cases = [harness.case(rows, leading=1)]
    cases += [
        harness.case(rows, leading=1, kv_dtype=name)
        for name in sorted(harness.can.kv_dtypes)
        if name.startswith("float8")
    ]
    if harness.has("mla"):
        cases.append(harness.case(rows, leading=1, mla=harness.mla, ratio=min(16, harness.can.max_gqa_ratio)))
    for case in cases:
        rig = harness.rig(case)
        if isinstance(harness.can.dense, No):
            return _absent(rig, harness.can.dense, rig.backend.parts().dense)
        step = Step(rig, case)
        step.fill()
        step.store()
        for row, start, stop in ((0, 0, rows[0].context), (1, 3, 29), (1, 28, 29), (0, 5, 5), (0, 15, 18)):
            wanted = _entries(step, row, start, stop)
            guards = [torch.full((len(x) + 2, *x.shape[1:]), 7.0, dtype=x.dtype, device=harness.device) for x in wanted]
            out = (guards[0][1:-1], guards[1][1:-1])
            _dense(rig).gather(step.plan, step.layer, row, start, stop, out)
            for name, guard, x in zip(("first", "second"), guards, wanted, strict=True):
                told = f"tokens [{start}, {stop}) of row {row}, {name} entry; {case}"
                expect(torch.equal(guard[1:-1].cpu(), x), f"gather does not give back what was stored: {told}")
                expect(bool((guard[[0, -1]] == 7).all()), f"gather writes outside its result: {told}")
    return {"cases": len(cases)}


def _entries(step: Step, row: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """What gather must give, in the dtype of the layer."""
    content, mla = step.content, step.case.mla
    keys, values = content.keys[row][start:stop], content.values[row][start:stop]
    if mla is not None:
        keys, values = values[:, 0], keys[:, 0, mla.rank :]
    dtype = DTYPES[step.case.dtype]
    return keys.to(dtype), values.to(dtype)


@check(
    "attention.parts.merge",
    level=1,
    clause="attention/1.0: merge folds a second partial result into the first, in place, by log-sum-exp",
    explain="Weights from exp without the maximum overflow; base 2 taken for base e; the mean of both; NaN where one "
    "side saw nothing (lse -inf).",
)
@torch.inference_mode()
def merge(target: Target) -> Outcome:
    """Two parts of very unequal weight, and parts that saw nothing."""
    harness = Harness(target)
    margins = Margins()
    for dtype in harness.dtypes:
        rig = harness.rig(harness.case(rows_of((20, 1)), dtype=dtype))
        if isinstance(harness.can.dense, No):
            return _absent(rig, harness.can.dense, rig.backend.parts().dense)
        rng = target.rng("merge")
        shape = (6, rig.spec.q_heads, rig.spec.v_head_dim)
        out, out2 = (torch.from_numpy(rng.standard_normal(shape, np.float32)).to(DTYPES[dtype]) for _ in range(2))
        lse, lse2 = (torch.from_numpy(rng.standard_normal(shape[:2], np.float32)) * 2 for _ in range(2))
        lse[0], lse2[0], lse[1], lse2[1] = 200.0, 201.0, 5.0, -90.0
        lse2[2], lse[3], lse[4], lse2[4] = -torch.inf, -torch.inf, -torch.inf, -torch.inf
        out2[2] = out[3] = out[4] = out2[4] = 0
        total = torch.logaddexp(lse.double(), lse2.double())
        share, share2 = (torch.exp(x.double() - total).nan_to_num(0.0)[..., None] for x in (lse, lse2))
        gold = out.double() * share + out2.double() * share2
        given = [x.to(harness.device) for x in (out, lse, out2, lse2)]
        kept = [bytes_of(x) for x in given[2:]]
        _dense(rig).merge(given[0], given[1], given[2], given[3])
        merged, merged_lse = given[0].cpu().double(), given[1].cpu().double()
        told = f"merge in {dtype}"
        limit = 1.5 * relative(gold.to(DTYPES[dtype]).double(), gold) + 1e-6
        margins.gate("gate A (relative L2 error)", relative(merged, gold), limit, told)
        seen = total > -torch.inf
        expect(torch.equal(merged_lse > -torch.inf, seen), f"{told}: lse of two parts that saw nothing must stay -inf")
        margins.gate("log-sum-exp", relative(merged_lse[seen], total[seen]), 1e-6, told)
        same = all(torch.equal(bytes_of(x), old) for x, old in zip(given[2:], kept, strict=True))
        expect(same, f"{told}: the second part was changed")
    return margins.figures()


@check(
    "attention.parts.prefix_chunks",
    level=1,
    clause="attention/1.0: gathered prefix chunks, dense attention and merge give what attend gives",
    explain="One of the three does not fit the others: base of lse, alignment of masks, order of in-place arguments.",
)
@torch.inference_mode()
def prefix_chunks(target: Target) -> Outcome:
    """A chunk of a prompt over its stored prefix in pieces, as layers with latents do for long prompts."""
    harness = Harness(target)
    case = harness.case(rows_of((75, 20)), dtype="float32" if "float32" in harness.can.dtypes else harness.dtypes[0])
    rig = harness.rig(case)
    if isinstance(harness.can.dense, No):
        return _absent(rig, harness.can.dense, rig.backend.parts().dense)
    step, part = Step(rig, case), _dense(rig)
    result = step.run()
    dtype, spec = DTYPES[case.dtype], case.spec

    def attend(k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        bounds = [torch.tensor([0, n], dtype=torch.int32, device=harness.device) for n in (20, len(k))]
        out = torch.empty(20, spec.q_heads, spec.v_head_dim, dtype=dtype, device=harness.device)
        lse = torch.empty(20, spec.q_heads, device=harness.device)
        part.attend_dense(step.q, k, v, (bounds[0], bounds[1]), out, causal=causal, lse=lse)
        return out, lse

    out, lse = attend(*step.new, causal=True)
    for start, stop in ((0, 30), (30, 31), (31, 75)):
        shape = (stop - start, spec.kv_heads)
        k = torch.empty(*shape, spec.head_dim, dtype=dtype, device=harness.device)
        v = torch.empty(*shape, spec.v_head_dim, dtype=dtype, device=harness.device)
        part.gather(step.plan, step.layer, 0, start, stop, (k, v))
        part.merge(out, lse, *attend(k, v, causal=False))
    margins = Margins()
    result.check(margins)
    result.out, result.lse = out.cpu(), lse.cpu()
    error = relative(result.out.double(), result.truth.out)
    rounded_often = 4 * relative(result.truth.same, result.truth.out) + 1e-6
    margins.gate("error of merged parts", error, rounded_often, case)
    margins.gate("error of merged lse", relative(result.lse.double(), result.truth.lse), rounded_often, case)
    return margins.figures()


@check(
    "attention.parts.move_slots",
    level=1,
    clause="attention/1.0: move_slots copies entries at source slots to target slots, all planes",
    explain="One plane only, source and target exchanged, or whole pages moved.",
)
@torch.inference_mode()
def move_slots(target: Target) -> Outcome:
    """Single tokens from one row to another, in every kind of entry; then attention over them."""
    harness = Harness(target)
    rows = rows_of((2 * harness.page + 8, 1), (harness.page + 4, 1))
    cases = [harness.case(rows, leading=2)]
    cases += [
        harness.case(rows, leading=2, kv_dtype=name)
        for name in sorted(harness.can.kv_dtypes)
        if name.startswith("float8")
    ]
    if harness.has("mla"):
        cases.append(harness.case(rows, leading=2, mla=harness.mla, ratio=min(16, harness.can.max_gqa_ratio)))
    margins = Margins()
    for case in cases:
        rig = harness.rig(case)
        mover = rig.backend.parts().mover
        if isinstance(harness.can.move_slots, No):
            return _absent(rig, harness.can.move_slots, mover)
        if mover is None:
            raise Failed("move_slots is declared and parts().mover is None")
        step = Step(rig, case, content=Content(case, target.rng("moves")))
        step.run().check(margins)
        source, landing = [3, harness.page + 5], [harness.page + 2, 0]
        slots = [
            torch.tensor(np.concatenate([step.slots(row, at, at + 1) for at in places]), device=harness.device)
            for row, places in ((0, source), (1, landing))
        ]
        before = {name: bytes_of(plane) for name, plane in step.layer.planes.items()}
        mover.move_slots(step.layer, slots[0], slots[1])
        touched = set((slots[1] // case.page).tolist())
        for name, plane in step.layer.planes.items():
            changed = (bytes_of(plane) != before[name]).any(1).nonzero().flatten().tolist()
            expect(set(changed) <= touched, f"move_slots changed pages of {name} beside the targets'", observed=changed)
        step.content.move(0, source, 1, landing)
        step.attend().check(margins)
    return margins.figures()


@check(
    "attention.parts.advance",
    level=1,
    clause="attention/1.0: advance recomputes from device memory what depends on lengths after they grew",
    explain="Lengths of the fill are kept, or read from the host, which does not know the new ones.",
)
@torch.inference_mode()
def advance(target: Target) -> Outcome:
    """Fill, let the device's lengths grow by one token twice, advance each time, and attend."""
    harness = Harness(target)
    stored = (harness.page - 2, 20, 0)
    grown = [harness.case(rows_of(*((n + more, 1) for n in stored)), leading=3) for more in range(3)]
    rig = harness.rig(grown[-1])
    part = rig.backend.parts().advance
    if isinstance(harness.can.advance, No):
        return _absent(rig, harness.can.advance, part)
    if part is None:
        raise Failed("advance is declared and parts().advance is None")
    margins = Margins()
    step = Step(rig, grown[-1])
    tokens = [step.content.tokens_of(row) for row in range(len(stored))]
    for more, case in enumerate(grown):
        step.case, step.content = case, Content(case, target.rng(f"{more}"))
        step.content.take(step.content.q, tokens)
        step.q, step.new = step.inputs()
        context = np.array([row.context for row in case.rows], np.int32)
        step.batch.context.copy_(torch.from_numpy(context))
        step.batch.positions.copy_(torch.from_numpy(context - 1))
        step.view.slot_mapping.copy_(step.view_of(step.pages, step.n_query, context).slot_mapping)
        if more == 0:
            step.batch.host_context = context
            step.fill()
        else:
            part.advance(step.plan)
        step.store()
        step.attend().check(margins)
    return margins.figures()


@check(
    "attention.parts.store_rotated",
    level=1,
    clause="attention/1.1: store_rotated: the operator rope on q and k, or norm_rope, then store",
    explain="K is stored as it came, the norms are left out, the halves are those of the head and not of what is "
    "rotated, or what stands behind them is lost.",
)
@torch.inference_mode()
def store_rotated(target: Target) -> Outcome:
    """Whole heads normed and rotated, and parts of heads rotated, beside the same rotated first and stored then."""
    harness = Harness(target)
    rows = rows_of((3, 1), (0, 1), (harness.page - 2, 4))
    kv_dtypes = ["", *sorted(name for name in harness.can.kv_dtypes if name.startswith("float8"))]
    cases = [harness.case(rows, dtype=dtype, leading=2, padding=1, fused=True) for dtype in harness.dtypes]
    cases += [harness.case(rows, leading=2, kv_dtype=kv_dtype) for kv_dtype in kv_dtypes[1:]]
    worst = 0.0
    for case in cases:
        rig = harness.rig(case)
        part = rig.backend.parts().rotated
        if isinstance(harness.can.store_rotated, No):
            return _absent(rig, harness.can.store_rotated, part)
        if part is None:
            raise Failed("store_rotated is declared and parts().rotated is None")
        size = case.head_dim
        for op in (OpCase("norm_rope", case.dtype, {"head_dim": size}), _part_of_head(case)):
            worst = max(worst, _rotated_alike(rig, case, op, part))
    return {"cases": 2 * len(cases), "worst": round(worst, 3)}


def _part_of_head(case: Case) -> OpCase:
    return OpCase("rope", case.dtype, {"head_dim": case.head_dim, "rotary": case.head_dim // 4 * 2})


def _rotated_alike(rig: Rig, case: Case, op: OpCase, part: RotatedStore) -> float:
    """The largest error of q as a share of what is allowed; raises `Failed` for it, and for other planes."""
    once, apart = Step(rig, case), Step(rig, case)
    device, dtype = rig.harness.device, DTYPES[case.dtype]
    given = gold.draw(op, len(once.q), rig.harness.target.rng(f"{case} {op.op}"))
    given |= {"q": once.q.cpu(), "k": once.new[0].cpu()}
    wanted = gold.expected(op, given)
    there = {name: tensor.to(device) for name, tensor in given.items()}
    norms = (there["q_weight"], there["k_weight"], gold.EPS) if op.op == "norm_rope" else None
    once.fill()
    part.store_rotated(once.plan, once.layer, once.q, *once.new, Rotation(there["cos"], there["sin"], norms))
    apart.new = wanted["k"].value.to(dtype).to(device), apart.new[1]
    apart.fill()
    apart.store()
    nearly = 2 * torch.finfo(dtype).eps * float(wanted["k"].rounded.max())
    for name, plane in once.layer.planes.items():
        found, right = (one.float().cpu() for one in (plane, apart.layer.planes[name]))
        close = torch.isclose(found, right, rtol=2 * torch.finfo(plane.dtype).eps, atol=nearly, equal_nan=True)
        expect(bool(close.all()), f"{op.op} and store: the plane {name} is not as if done apart, in {case}")
    return gold.compare(once.q, wanted["q"], case.dtype, f"{op.op} and store: q in {case}")
