"""CUDA graphs: record what a piece of work launches, and launch it again at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from srtkit.spec.errors import EngineError
from srtkit.spec.platform import GraphHandle, GraphPrimitives
from srtkit_plugin_platform_cuda import PART


@dataclass
class CudaPool:
    """Memory that graphs share: what one uses only while it runs, another may use while that one runs.

    torch forgets a pool with its last graph, and then refuses its name: a pool without graphs takes a new one.
    """

    handle: Any = field(default_factory=torch.cuda.graph_pool_handle)
    graphs: int = 0

    def name(self) -> Any:
        """What torch knows it by."""
        if self.graphs == 0:
            self.handle = torch.cuda.graph_pool_handle()
        return self.handle


class CudaGraph(GraphHandle):
    """A recorded graph; its temporary memory stays reserved in the pool until `close`."""

    def __init__(self, graph: torch.cuda.CUDAGraph, pool: CudaPool) -> None:
        self._graph: torch.cuda.CUDAGraph | None = graph
        self._pool = pool
        pool.graphs += 1

    def replay(self) -> None:
        """Launch it on the current stream. Raises `EngineError` after `close`."""
        if self._graph is None:
            raise EngineError(PART, "a closed graph was replayed")
        self._graph.replay()

    def close(self) -> None:
        """Free it. Idempotent."""
        if self._graph is not None:
            self._graph.reset()
            self._graph = None
            self._pool.graphs -= 1


class CudaGraphs(GraphPrimitives):
    """Captures on a stream of its own, as CUDA wants it: the default stream cannot be captured.

    It is the same one for all: torch gives memory of a pool again only to the stream that had it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def new_pool(self) -> CudaPool:
        """A pool without graphs."""
        return CudaPool()

    def capture(self, pool: object, work: Callable[[], None]) -> GraphHandle:
        """Record what `work` launches; nothing is run. An error of `work`, or of the capture, goes to the caller."""
        assert isinstance(pool, CudaPool)
        graph, name = torch.cuda.CUDAGraph(), pool.name()
        torch.cuda.synchronize(self._device)  # work before the capture may still use memory that it would take
        torch.cuda.empty_cache()  # a capture takes memory of the driver only, and cannot have torch give back any
        with torch.cuda.stream(self._side):
            # thread_local: other threads may go on using the device.
            graph.capture_begin(pool=name, capture_error_mode="thread_local")
            try:
                work()
                graph.capture_end()  # reports what broke the capture and `work` did not
            except BaseException:
                self._abandon(graph, name)
                raise
        return CudaGraph(graph, pool)

    def _abandon(self, graph: torch.cuda.CUDAGraph, name: Any) -> None:
        """End a capture whose result nobody wants."""
        try:
            graph.capture_end()
        except RuntimeError:
            # The capture was already broken. torch then leaves its allocator drawing from the graph's pool.
            torch._C._cuda_endAllocateToPool(self._device.index, name)
            torch.cuda.synchronize(self._device)  # the error stays with the capture, not with the next call
        graph.reset()
