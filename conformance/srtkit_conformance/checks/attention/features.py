"""Each named feature by itself: right where it is declared, refused where it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from srtkit.spec.attention import MlaDims
from srtkit_conformance.check import Outcome, check
from srtkit_conformance.kits.attention.case import Case, rows_of
from srtkit_conformance.kits.attention.content import Content
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step, ask, verify
from srtkit_conformance.kits.numeric.gates import Margins, relative
from srtkit_conformance.target import Target

ROWS = rows_of((99, 1), (75, 33), (0, 40))


def _feature(target: Target, name: str, cases: Callable[[Harness], Sequence[Case]]) -> Outcome:
    """Run the cases, or ask for the first one where the feature is not declared."""
    harness = Harness(target)
    if not harness.has(name):
        return ask(harness, cases(harness)[0], f"the feature {name}")
    return verify(harness, cases(harness)).figures()


@check(
    "attention.features.window",
    level=1,
    clause="attention/1.0: a window is W visible tokens, itself included",
    explain="A window of W + 1 (many kernels count the tokens before), none at all, or one taken for decode only.",
)
def window(target: Target) -> Outcome:
    """Windows of one token, of less and more than a page, longer than some rows."""

    def cases(harness: Harness) -> list[Case]:
        return [harness.case(ROWS, leading=1, window=size) for size in (24, 1, harness.page + 1, 64)]

    return _feature(target, "window", cases)


@check(
    "attention.features.soft_cap",
    level=1,
    clause="attention/1.0: scores become cap * tanh(s / cap)",
    explain="The cap is ignored, applied before the scale, or after the mask.",
)
def soft_cap(target: Target) -> Outcome:
    """Caps that bind: inputs of standard deviation 4, and a cap of 2."""

    def cases(harness: Harness) -> list[Case]:
        both = ((30.0, 4.0), (2.0, 1.0))
        return [harness.case(ROWS, leading=1, soft_cap=cap, std=std) for cap, std in both]

    return _feature(target, "soft_cap", cases)


@check(
    "attention.features.sinks",
    level=1,
    clause="attention/1.0: a sink is a score of its head without a value; float32 [q_heads] in the layer's handle",
    explain="Sinks ignored, multiplied by the scale, or left out of the log-sum-exp.",
)
def sinks(target: Target) -> Outcome:
    """Sinks for short and long rows."""

    def cases(harness: Harness) -> list[Case]:
        return [harness.case(ROWS, leading=1, sinks=True), harness.case(rows_of((2, 1), (0, 5)), sinks=True, leading=1)]

    return _feature(target, "sinks", cases)


@check(
    "attention.features.non_causal",
    level=1,
    clause="attention/1.0: without causal every query sees all tokens of its row",
    explain="The causal mask is applied whatever the spec says.",
)
def non_causal(target: Target) -> Outcome:
    """Rows whose queries see each other."""

    def cases(harness: Harness) -> list[Case]:
        return [harness.case(ROWS, leading=1, causal=False)]

    return _feature(target, "non_causal", cases)


def _trees(q_len: int) -> Callable[[Harness], list[Case]]:
    def cases(harness: Harness) -> list[Case]:
        n = min(q_len, harness.can.max_q_len_decode)
        rows = rows_of((40, n), (0, n), (33, n), (0, 5), (20, 1))
        windows = (0, 6) if harness.has("window") else (0,)
        return [harness.case(rows, tree=True, leading=3, window=window) for window in windows]

    return cases


@check(
    "attention.features.tree_mask",
    level=1,
    clause="attention/1.0: tree_mask names the drafts that each draft sees; the committed prefix is visible",
    explain="The mask is ignored, or only among drafts of equal depth; the drafts' own rows are taken for causal.",
)
def tree_mask(target: Target) -> Outcome:
    """Random trees of 9 drafts, beside rows without a tree; a window counts positions by depth."""
    return _feature(target, "tree_mask", _trees(9))


@check(
    "attention.features.tree_words",
    level=1,
    clause="attention/1.0: bit j of word w set: query i sees draft token 32 w + j",
    explain="Words after the first are not read, or bits are counted from the other end of the word.",
)
def tree_words(target: Target) -> Outcome:
    """Random trees of 37 drafts, whose bits take two words, where so long a query is declared."""
    return _feature(target, "tree_mask", _trees(37))


@check(
    "attention.features.mla",
    level=1,
    clause="attention/1.0: for MLA the stored entry is latent and rope part; absorbed, the latent is the value",
    explain="The rope part left out of the scores, the scale of the wrong head size, or a value that includes the rope "
    "part.",
)
def mla(target: Target) -> Outcome:
    """Absorbed attention over latents, plain and fp8: decode, chunk, prompt."""

    def cases(harness: Harness) -> list[Case]:
        dims = harness.mla if harness.has("mla") else MlaDims(512, 64, 128, 128)
        ratio = min(16, harness.can.max_gqa_ratio)
        kv_dtypes = ["", *sorted(name for name in harness.can.kv_dtypes if name.startswith("float8"))][:2]
        rows = rows_of((50, 1), (7, 1), (20, 5), (0, 9))
        plain, *fp8 = (harness.case(rows, mla=dims, ratio=ratio, leading=2, kv_dtype=name) for name in kv_dtypes)
        return [plain, *(case for case in fp8 if harness.layouts(case.spec, case.page))]  # the pair may be declined

    return _feature(target, "mla", cases)


@check(
    "attention.features.fp8_kv",
    level=1,
    clause="attention/1.0: fp8 planes hold value / scale; scales are float32, one or one per KV head",
    explain="Scale multiplied where it must divide, V's taken for K's, one scale for all heads, or a missing "
    "dequantisation. The truth uses the values as stored, so that only the kernel is judged.",
)
def fp8_kv(target: Target) -> Outcome:
    """Every declared float8 dtype; scales are powers of two, so that rounding is the same in all encoders."""

    def cases(harness: Harness) -> list[Case]:
        declared = sorted(name for name in harness.can.kv_dtypes if name.startswith("float8"))
        return [harness.case(ROWS, leading=1, kv_dtype=name, kv_heads=4) for name in declared or ["float8_e4m3fn"]]

    return _feature(target, "fp8_kv", cases)


@check(
    "attention.features.fp8_error",
    level=2,
    clause="attention/1.0: fp8 planes hold value / scale, rounded to the nearest and saturated",
    explain="Truncation in place of rounding, or NaN where a value exceeds the largest.",
)
def fp8_error(target: Target) -> Outcome:
    """The error of the stored values themselves is that of rounding once; too large values saturate."""
    harness = Harness(target)
    declared = sorted(name for name in harness.can.kv_dtypes if name.startswith("float8"))
    if not declared:
        return ask(harness, harness.case(ROWS, leading=1, kv_dtype="float8_e4m3fn"), "the feature fp8_kv")
    margins = Margins()
    for name in declared:
        case = harness.case(ROWS, leading=1, kv_dtype=name)
        scales = {"q": torch.tensor(1.0), "k": torch.tensor([0.7, 1.3]), "v": torch.tensor(1.1)}
        content = Content(case, target.rng(name), scales)
        result = Step(harness.rig(case), case, content=content).run()
        exact = Content(harness.case(ROWS, leading=1), target.rng(name)).truth()
        rounding = relative(result.truth.out, exact.out)
        margins.gate("error of fp8", relative(result.out.double(), exact.out), 1.2 * rounding, case)
        largest = harness.case(ROWS, leading=1, kv_dtype=name, std=600.0)
        Step(harness.rig(largest), largest).run().check(margins)
    return margins.figures()
