"""The formulas of each kind, within the gates of a float64 solution, prompt and decode."""

from __future__ import annotations

from typing import Any

from srtkit.spec.errors import Unsupported
from srtkit_conformance.check import Failed, Outcome, check
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.kits.numeric.pairs import pairwise
from srtkit_conformance.kits.recurrent.case import Case
from srtkit_conformance.kits.recurrent.harness import Harness
from srtkit_conformance.kits.recurrent.world import World, ask, each
from srtkit_conformance.target import Target


def prompt_and_decode(world: World) -> None:
    """A prompt of some chunks of any usual size, and three tokens."""
    sequence = world.admit(100)
    for n in (97, 1, 1, 1):
        world.run((sequence, n))


@check(
    "recurrent.numerics.mamba2",
    level=1,
    clause="recurrent/1.0: S ← exp(dt a) S + dt x Bᵀ; out = S C + d x",
    explain="softplus or a bias once more on dt, exp on a, a gate that is the model's; out before the state's update.",
)
def mamba2(target: Target) -> Outcome:
    """In every declared dtype; a refusal where the kind is not declared."""
    return _kind(Harness(target), "mamba2")


@check(
    "recurrent.numerics.gated_delta",
    level=1,
    clause="recurrent/1.0: S ← exp(decay) S; S ← S + beta (v - S k) kᵀ; out = S q / √state_dim, q and k normalised",
    explain="q or k not normalised, q not scaled, S k taken before the decay, or exp missing on decay.",
)
def gated_delta(target: Target) -> Outcome:
    """In every declared dtype; a refusal where the kind is not declared."""
    return _kind(Harness(target), "gated_delta")


@check(
    "recurrent.numerics.convolution",
    level=1,
    clause="recurrent/1.0: SiLU(convolution + bias); the newest token's column last; conv_bias absent: none",
    explain="Columns reversed, the bias after SiLU or not at all, or a kernel for a width of 4 alone.",
)
def convolution(target: Target) -> Outcome:
    """Widths 2, 3 and 4, with a bias and without."""
    harness = Harness(target)
    cases = [case for width in (2, 3, 4) for case in harness.cases(conv_width=width, bias=width != 3)]
    return each(harness, cases, _short)


@check(
    "recurrent.numerics.skip",
    level=1,
    clause='recurrent/1.0: "d" float32 [heads] (absent: no skip)',
    explain="d is taken for ones, is applied to x before the convolution, or is required.",
)
def skip(target: Target) -> Outcome:
    """Mamba2 with a skip and without; other kinds have none."""
    harness = Harness(target)
    if "mamba2" not in harness.kinds:
        return ask(harness, harness.case("mamba2"), "kind mamba2")
    return each(harness, [harness.case("mamba2", skip=skip) for skip in (True, False)], _short)


@check(
    "recurrent.numerics.groups",
    level=1,
    clause="recurrent/1.0: head h uses group h // (heads / groups)",
    explain="Heads are dealt out to groups in turn (h % groups), or one group is taken for all.",
)
def groups(target: Target) -> Outcome:
    """One group for all heads, two, and one for each head."""
    harness = Harness(target)
    return each(harness, [case for groups in (1, 2, 4) for case in harness.cases(heads=4, groups=groups)], _short)


@check(
    "recurrent.numerics.fast_decay",
    level=1,
    clause="recurrent/1.0: decay ≤ 0 is the logarithm of the factor on the state",
    explain="exp of a difference above the diagonal overflows and is multiplied by 0; or factors are divided by "
    "one another, and both are 0.",
)
def fast_decay(target: Target) -> Outcome:
    """States that forget within a token: a chunk's factors have logarithms of -1,000 and below."""
    harness = Harness(target)
    return each(harness, harness.cases(forgets=20.0), prompt_and_decode)


@check(
    "recurrent.numerics.slow_decay",
    level=1,
    clause='recurrent/1.0: the state has the spec\'s state_dtype, "float32" unless told otherwise',
    explain="The state is rounded to the inputs' dtype between steps, or between chunks: it drifts.",
)
def slow_decay(target: Target) -> Outcome:
    """States that remember a thousand tokens, step after step."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        sequence = world.admit(160)
        for n in (70, *[1] * 40, 50):
            world.run((sequence, n))

    return each(harness, harness.cases(forgets=0.001), scenario)


@check(
    "recurrent.numerics.shapes",
    level=2,
    clause="recurrent/1.0: a size without a kernel is refused with Unsupported at build",
    explain="A size that no kernel was made for is rounded up and reads its neighbour.",
    seconds=300,
)
def shapes(target: Target) -> Outcome:
    """Pairs of sizes, dtypes, groups, widths and kinds: right, or refused when built."""
    harness = Harness(target)
    factors: dict[str, list[Any]] = {
        "kind": harness.kinds,
        "dtype": harness.dtypes,
        "head_dim": [32, 64, 128],
        "state_dim": [16, 64, 128],
        "heads": [4, 8],
        "groups": [1, 2, 4],
        "conv_width": [2, 4],
        "bias": [True, False],
    }
    margins, refused = Margins(), 0
    cases = [Case(**one) for one in pairwise(factors, seed=target.seed + 1)]
    for case in cases:
        try:
            world = World(harness, case)
        except Unsupported:
            refused += 1
            continue
        world.margins = margins
        _short(world)
        world.close()
    if refused == len(cases):
        raise Failed("refuses every shape")
    return {"cases": len(cases), "refused": refused, **margins.figures()}


@check(
    "recurrent.numerics.state_dtypes",
    level=2,
    clause="recurrent/1.0: a state_dtype without a kernel is refused with Unsupported at build",
    explain="States are read as if they were float32, or plane and kernel disagree.",
)
def state_dtypes(target: Target) -> Outcome:
    """States in 16 bits: as near as rounding after each token, or refused when built."""
    harness = Harness(target)
    margins, refused = Margins(), []
    for case in [case for name in ("bfloat16", "float16") for case in harness.cases(state_dtype=name)]:
        try:
            world = World(harness, case)
        except Unsupported as error:
            refused.append(error.cause)
            continue
        world.margins = margins
        prompt_and_decode(world)
        world.close()
    return {"refused": "; ".join(refused), **margins.figures()}


def _short(world: World) -> None:
    sequence = world.admit(24)
    for n in (20, 1, 2):
        world.run((sequence, n))


def _kind(harness: Harness, kind: str) -> Outcome:
    if kind not in harness.kinds:
        return ask(harness, harness.case(kind), f"kind {kind}")
    return each(harness, [harness.case(kind, dtype=dtype) for dtype in harness.dtypes], prompt_and_decode)
