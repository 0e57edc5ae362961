"""What a step may read and write beside states: inputs, weights, indices, results."""

from __future__ import annotations

import torch
from torch import Tensor

from srtkit_conformance.check import Outcome, check, expect
from srtkit_conformance.kits.numeric.pool import bytes_of
from srtkit_conformance.kits.recurrent.harness import Harness
from srtkit_conformance.kits.recurrent.world import Row, Shape, Step, World, each
from srtkit_conformance.target import Target


@check(
    "recurrent.memory.inputs",
    level=1,
    clause="recurrent/1.0: inputs and weights are not changed",
    explain="SiLU in place on the projection's output, which the model may read again; a weight converted in place.",
)
def inputs(target: Target) -> Outcome:
    """Every input, weight and index is bit by bit as it was, after prompt and decode."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b = world.admit(40), world.admit(40)
        for work, leading in (([(a, 20), (b, 3)], 0), ([(a, 1), (b, 1)], 2)):
            step = Step(world, [Row(*one) for one in work], Shape(leading, (1,)))
            given = _given(step)
            before = {name: bytes_of(tensor) for name, tensor in given.items()}
            step.fill()
            step.run()
            step.commit()
            for name, tensor in given.items():
                expect(torch.equal(bytes_of(tensor), before[name]), f"{name} was changed; {world.case}: {step}")

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.memory.slices",
    level=1,
    clause="recurrent/1.0: tokens of inputs may be strided",
    explain="A row stride of conv_channels or heads is assumed; models hand in slices of their fused projection.",
)
def slices(target: Target) -> Outcome:
    """Inputs that are slices of wider tensors."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b = world.admit(40), world.admit(40)
        world.step([Row(a, 20), Row(b, 3)], Shape(fused=True))
        world.step([Row(a, 1), Row(b, 1)], Shape(leading=2, fused=True, padding=(1,)))
        world.step([Row(b, 1), Row(a, 15)], Shape(leading=1, fused=True))

    return each(harness, harness.cases(), scenario)


def _given(step: Step) -> dict[str, Tensor]:
    batch, weights = step.batch, step.world.layers[0].weights
    given = {f"input {name}": values for name, values in step.inputs.items()}
    given |= {f"weight {name}": values for name, values in weights.items()}
    given |= {"cu_q": batch.cu_q, "context": batch.context, "positions": batch.positions, "slots": batch.slots}
    given |= {"state_slots": step.state_slots}
    return given | {"host_q": torch.from_numpy(batch.host_q), "host_context": torch.from_numpy(batch.host_context)}
