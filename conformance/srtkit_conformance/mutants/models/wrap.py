"""A model that hands every call to another one, and plans that are changed: a fault overrides one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from srtkit.spec.models import Model, ModelBuild, ModelInputs, ModelOutput, ModelPlan, ModelsDescriptor, PlanRequest

Make = Callable[[ModelsDescriptor], ModelsDescriptor]


class WrappedModel(Model):
    """Legal as it stands."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner

    def run(self, inputs: ModelInputs) -> ModelOutput:
        return self.inner.run(inputs)

    def slots(self) -> Mapping[str, Tensor]:
        return self.inner.slots()

    def pack(self) -> None:
        self.inner.pack()

    def recurrent_weights(self) -> Mapping[int, Mapping[str, Tensor]]:
        return self.inner.recurrent_weights()


def around(wrapper: Callable[[Model], Model]) -> Make:
    """A descriptor whose model is wrapped."""
    return building(lambda build, inner: wrapper(inner(build)))


def building(change: Callable[[ModelBuild, Callable[[ModelBuild], Model]], Model]) -> Make:
    """A descriptor that builds otherwise: `change` is given the request and the original `build`."""
    return lambda descriptor: replace(descriptor, build=lambda build: change(build, descriptor.build))


def planning(change: Callable[[ModelPlan, PlanRequest], ModelPlan]) -> Make:
    """A descriptor whose plans are changed."""
    return lambda descriptor: replace(descriptor, plan=lambda request: change(descriptor.plan(request), request))
