"""One provider under test: which cases it takes, binding and calling its operators. Knows no check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from srtkit.spec.capabilities import No
from srtkit.spec.facts import Limits
from srtkit.spec.ops import SCHEMAS, ExpertsOp, Op, OpsBuild, OpsDescriptor, OpsProvider, WeightOp
from srtkit_conformance.check import Failed, Informational, Outcome, Refused
from srtkit_conformance.kits.ops.cases import SIZES, Case, cases_of
from srtkit_conformance.kits.ops.gold import EPS, Arguments, compare, expected
from srtkit_conformance.target import Target

LIMITS = Limits(max_rows=8, max_tokens=256, max_context=256, page_size=16)
PACKED = ("weight", "bias", "gate_up", "down")
"""What a weight-side operator is given by `pack`."""


@dataclass(frozen=True)
class Bench:
    """A built provider and its device."""

    target: Target
    device: torch.device
    provider: OpsProvider

    @property
    def descriptor(self) -> OpsDescriptor:
        """That of the target."""
        descriptor: OpsDescriptor = self.target.descriptor
        return descriptor

    def takes(self, case: Case) -> bool:
        """Whether its predicate says yes."""
        return bool(self.descriptor.accepts(case.facts(self.target.facts)))

    def cases(self, op: str) -> list[Case]:
        """Those that it takes; none for an operator that it does not offer."""
        asked = cases_of(op, self.target.facts) if op in self.descriptor.names else ()
        return [case for case in asked if self.takes(case)]

    def some(self, ops: Sequence[str] = tuple(SIZES)) -> list[Case]:
        """The first case that it takes of each operator and dtype."""
        found = {(case.op, case.dtype): case for op in ops for case in reversed(self.cases(op))}
        return list(found.values())

    def nothing(self, ops: Sequence[str] = tuple(SIZES)) -> Outcome:
        """The outcome where it takes no case of these operators."""
        offered = [op for op in ops if op in self.descriptor.names]
        for op in offered:
            for case in cases_of(op, self.target.facts):
                answer = self.descriptor.accepts(case.facts(self.target.facts))
                if isinstance(answer, No):
                    return Refused(f"{op}: {answer.reason}")
        return Informational(f"offers no {' and no '.join(ops)}")

    def bind(self, case: Case) -> Op:
        """A plain operator."""
        return self.provider.bind(case.facts(self.target.facts))

    def bind_weight(self, case: Case) -> WeightOp:
        """A weight-side operator. Raises `Failed` for anything else."""
        found = self.bind(case)
        if not isinstance(found, WeightOp):
            raise Failed(f"{case.op} is bound to something else", observed=type(found).__name__, limit="WeightOp")
        return found

    def bind_experts(self, case: Case) -> ExpertsOp:
        """The operator "experts". Raises `Failed` for anything else."""
        found = self.bind(case)
        if not isinstance(found, ExpertsOp):
            raise Failed(f"{case.op} is bound to something else", observed=type(found).__name__, limit="ExpertsOp")
        return found

    def there(self, given: Arguments) -> Arguments:
        """The arguments on the device, each in memory of its own."""
        return {name: tensor.to(self.device, copy=True) for name, tensor in given.items()}

    def ready(self, case: Case, there: Arguments) -> Op:
        """The operator, its weight packed if it has one."""
        if not SCHEMAS[case.op].weight_side:
            return self.bind(case)
        if case.op == "experts":
            experts = self.bind_experts(case)
            experts.pack(there["gate_up"], there["down"])
            return experts
        linear = self.bind_weight(case)
        linear.pack(there["weight"], there.get("bias"))
        return linear

    def call(self, op: Op, case: Case, there: Arguments, eps: float = EPS) -> dict[str, Any]:
        """Results by name: "out", and the arguments that it mutates."""
        schema = SCHEMAS[case.op]
        tensors = [tensor for name, tensor in there.items() if not (schema.weight_side and name in PACKED)]
        out = op(*tensors, eps) if "norm" in case.op else op(*tensors)
        results: dict[str, Any] = {name: there[name] for name in schema.mutates}
        if "-> None" in schema.call:
            if out is not None:
                raise Failed(f"{case.op} returns something; it works in place", observed=type(out).__name__)
            return results
        return {"out": out, **results}

    def check(self, op: Op, case: Case, given: Arguments, eps: float = EPS, there: Arguments | None = None) -> float:
        """Call and compare with float64; the largest error as a share of what is allowed."""
        there = self.there(given) if there is None else there
        return check_results(self.call(op, case, there, eps), case, given, eps)


def check_results(found: dict[str, Any], case: Case, given: Arguments, eps: float = EPS) -> float:
    """Compare results with those of the arguments as they were before the call."""
    what = f"{case.op} {case.dtype} {dict(case.sizes)}"
    wanted = expected(case, given, eps)
    return max(compare(found[name], one, case.dtype, f'{what}: "{name}"') for name, one in wanted.items())


@contextmanager
def opened(target: Target) -> Iterator[Bench]:
    """The provider on the device, under inference mode as the engine runs; the platform is closed at the end."""
    platform = target.platform()
    index, needs = target.device_index, target.extra.get("needs")
    try:
        with torch.inference_mode():
            provider = target.descriptor.build(OpsBuild(platform, index, LIMITS, target.options, needs))
            yield Bench(target, platform.device(index), provider)
    finally:
        platform.close()
