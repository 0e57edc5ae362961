"""CUDA graphs: record what a piece of work launches, and launch it again at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from srtkit.spec.errors import EngineError
from srtkit.spec.platform import GraphHandle, GraphPrimitives


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

    def __init__(self, graph: torch.cuda.CUDAGraph, pool: CudaPool, part: str) -> None:
        self._graph: torch.cuda.CUDAGraph | None = graph
        self._pool = pool
        self._part = part
        pool.graphs += 1

    def replay(self) -> None:
        """Launch it on the current stream. Raises `EngineError` after `close`."""
        if self._graph is None:
            raise EngineError(self._part, "a closed graph was replayed")
        self._graph.replay()

    def close(self) -> None:
        """Free it. Idempotent."""
        if self._graph is not None:
            self._graph.reset()
            self._graph = None
            self._pool.graphs -= 1


class _Memory:
    """Memory that torch makes a tensor over without owning it."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.dtype.itemsize
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
            "typestr": f"<i{size}",  # there are no names for all dtypes: the bytes are told, and viewed
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


@dataclass
class _Open:
    """What is being recorded, and the stream that was current before."""

    graph: torch.cuda.CUDAGraph
    pool: CudaPool
    before: torch.cuda.Stream


class CudaGraphs(GraphPrimitives):
    """Captures on a stream of its own, as CUDA wants it: the default stream cannot be captured.

    It is the same one for all: torch gives memory of a pool again only to the stream that had it.
    """

    def __init__(self, device: torch.device, part: str) -> None:
        self._device = device
        self._part = part
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._open: _Open | None = None
        # torch makes two tensors for random numbers with the first graph that there is, and ends the process when the
        # memory for these is not there: its graph is then torn down as if it had got them. One that stays has them.
        self._first = torch.cuda.CUDAGraph()
        self._first.register_generator_state(torch.cuda.default_generators[device.index or 0])

    def new_pool(self) -> CudaPool:
        """A pool without graphs."""
        return CudaPool()

    def begin(self, pool: object) -> None:
        """Record what this thread launches; nothing is run. Its current stream is another one until the end."""
        assert isinstance(pool, CudaPool) and self._open is None, "recordings do not nest"
        torch.cuda.synchronize(self._device)  # work before the capture may still use memory that it would take
        torch.cuda.empty_cache()  # a capture takes memory of the driver only, and cannot have torch give back any
        # keep_graph: to end a capture is not to make the graph ready for launch, which takes memory.
        graph, before = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.current_stream(self._device)
        self._open = _Open(graph, pool, before)
        torch.cuda.set_stream(self._side)
        try:
            # thread_local: other threads may go on using the device.
            graph.capture_begin(pool=pool.name(), capture_error_mode="thread_local")
        except BaseException:
            self.abandon()
            raise

    def end(self) -> GraphHandle:
        """The graph, ready for launch. Raises what broke the capture and was not told by a call inside."""
        assert self._open is not None, "end without begin"
        opened = self._open
        try:
            opened.graph.capture_end()
        except BaseException:
            self.abandon()
            raise
        self._leave(opened)
        try:
            opened.graph.instantiate()
        except BaseException:
            opened.graph.reset()
            raise
        return CudaGraph(opened.graph, opened.pool, self._part)

    def abandon(self) -> None:
        """End a capture whose result nobody wants; nothing if none is open."""
        opened = self._open
        if opened is None:
            return
        try:
            opened.graph.capture_end()
        except RuntimeError:
            # The capture was already broken. torch may then have left its allocator drawing from the graph's pool, and
            # counts a graph of it.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._device.index, opened.pool.handle)
                torch._C._cuda_releasePool(self._device.index, opened.pool.handle)
        self._leave(opened)
        opened.graph.reset()
        with suppress(RuntimeError):
            torch.cuda.synchronize(self._device)  # the error stays with the capture, not with the next call

    def alias(self, tensor: Tensor) -> Tensor:
        """A tensor over the same memory that does not keep it: torch gives it to what is recorded later."""
        if not tensor.is_cuda or tensor.numel() == 0:
            return tensor
        return torch.as_tensor(_Memory(tensor), device=self._device).view(tensor.dtype)

    def _leave(self, opened: _Open) -> None:
        torch.cuda.set_stream(opened.before)
        self._open = None
