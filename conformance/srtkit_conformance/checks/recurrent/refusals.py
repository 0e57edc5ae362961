"""What is declared must be of the contract; everything that is not declared must be refused, never computed wrongly."""

from __future__ import annotations

from srtkit.spec.errors import Unsupported
from srtkit_conformance.check import Failed, Outcome, check, expect
from srtkit_conformance.kits.numeric.refusals import together
from srtkit_conformance.kits.recurrent.harness import Harness
from srtkit_conformance.kits.recurrent.world import Row, Shape, Step, World, ask
from srtkit_conformance.target import Target

DTYPES = ("float64", "bfloat16", "float16", "float32")
CLAUSE = "recurrent/1.0: what is not declared is refused with Unsupported, never computed wrongly"


@check(
    "recurrent.layout",
    level=1,
    clause='recurrent/1.0: state_layouts lists planes "conv" in the spec\'s dtype and "state" in its state_dtype',
    explain="Planes of other names, a state that is stored in the dtype of the inputs, or sizes that do not follow the "
    "spec.",
)
def layout(target: Target) -> Outcome:
    """Names and dtypes of the planes, and room for a state in each."""
    harness = Harness(target)
    figures = {}
    for case in [case for dtype in harness.dtypes for case in harness.cases(dtype=dtype)]:
        spec = case.spec
        planes = {plane.name: plane for plane in harness.descriptor.state_layouts(spec)}
        expect(planes.keys() == {"conv", "state"}, f"{case}: the planes are {sorted(planes)}", limit="conv, state")
        wanted = {"conv": spec.dtype, "state": spec.state_dtype}
        for name, dtype in wanted.items():
            expect(planes[name].dtype == dtype, f"{case}: plane {name} has {planes[name].dtype}", limit=dtype)
        figures[f"bytes of a slot, {case.kind} in {case.dtype}"] = sum(plane.page_bytes for plane in planes.values())
    return figures


@check(
    "recurrent.refusals.dtypes",
    level=1,
    clause=CLAUSE,
    explain="The backend is built for a dtype that it does not declare, and computes in another.",
)
def dtypes(target: Target) -> Outcome:
    """Undeclared dtypes of the inputs."""
    harness = Harness(target)
    missing = [name for name in DTYPES if name not in harness.can.dtypes]
    return together([ask(harness, harness.case(dtype=name), f"dtype {name}") for name in missing])


@check(
    "recurrent.refusals.kinds",
    level=1,
    clause=CLAUSE,
    explain="What is not the one kind is taken for the other: a kind that a later version adds would be computed "
    "wrongly.",
)
def kinds(target: Target) -> Outcome:
    """A kind that no version has."""
    harness = Harness(target)
    case = harness.case()
    try:
        World(harness, harness.case("conformance_invented"))
    except Unsupported as error:
        return {"refused": error.cause}
    raise Failed(f"built a backend for a kind that no version of the contract has; it declares {case.kind}")


@check(
    "recurrent.refusals.batch_features",
    level=1,
    clause="recurrent/1.0: fill raises Unsupported for a batch feature that is not declared",
    explain="fill ignores the names in batch.features: a tree of drafts would be computed as a chain.",
)
def batch_features(target: Target) -> Outcome:
    """A tree mask, unless it is declared, and a feature that no version has."""
    harness = Harness(target)
    world = World(harness, harness.case())
    told = []
    for feature in {"tree_mask", "conformance_invented"} - harness.can.features:
        step = Step(world, [Row(world.admit(9), 4)], Shape(leading=1))
        step.batch.features = frozenset({feature})
        try:
            step.fill()
        except Unsupported as error:
            told.append(error.cause)
        else:
            raise Failed(f"fill took the batch feature {feature}, which is not declared")
    return {"refused": "; ".join(sorted(told))}
