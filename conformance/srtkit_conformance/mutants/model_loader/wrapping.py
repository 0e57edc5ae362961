"""How a wrong loader is made: the right one inside a wrapper that changes one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from srtkit.spec.model_loader import ModelLoader, ModelLoaderBuild, ModelLoaderDescriptor, WeightInfo, WeightRequest

if TYPE_CHECKING:
    from torch import Tensor

Answer = tuple[WeightRequest, "Tensor"]
Make = Callable[[ModelLoaderDescriptor], ModelLoaderDescriptor]


class Wrapped(ModelLoader):
    """Hands every call to `inner`; a fault overrides one."""

    def __init__(self, inner: ModelLoader) -> None:
        self.inner = inner

    def index(self) -> Sequence[WeightInfo]:
        return self.inner.index()

    def read(self, requests: Iterable[WeightRequest]) -> Iterator[Answer]:
        return self.inner.read(requests)

    def close(self) -> None:
        self.inner.close()

    def one(self, request: WeightRequest) -> Tensor:
        """The tensor of a single request."""
        [(_, tensor)] = self.inner.read([request])
        return tensor


@dataclass(frozen=True)
class BuildAround:
    """A build function: what `inner` builds, inside a wrapper."""

    inner: Callable[[ModelLoaderBuild], ModelLoader]
    wrapper: Callable[[ModelLoader], ModelLoader]

    def __call__(self, build: ModelLoaderBuild) -> ModelLoader:
        return self.wrapper(self.inner(build))


def around(wrapper: type[Wrapped]) -> Make:
    """The plugin's loader inside `wrapper`."""
    return lambda descriptor: replace(descriptor, build=BuildAround(descriptor.build, wrapper))
