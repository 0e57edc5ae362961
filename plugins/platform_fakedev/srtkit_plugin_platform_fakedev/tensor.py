"""Device tensors: what torch calls on them becomes a task, and the host gets only what it waits for.

A device tensor has a twin on the host with the same shape and strides, which only tasks touch. Shapes of
results come from torch's meta kernels, so nothing runs at launch. Views alias the twin.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from srtkit.spec.errors import Unsupported
from srtkit_plugin_platform_fakedev.device import Device
from srtkit_plugin_platform_fakedev.faults import PART
from srtkit_plugin_platform_fakedev.memory import Memory, bytes_of
from srtkit_plugin_platform_fakedev.streams import Span, Task

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
LAYOUTS = 4096
"""Calls whose results' layouts a device remembers. Most come again, and a meta kernel written in Python takes longer
than all else that is done for a call.
"""


class DeviceTensor(Tensor):
    """A tensor on a fake device."""

    home: Device
    memory: Memory
    twin: Tensor

    @staticmethod
    def __new__(cls: type[DeviceTensor], home: Device, memory: Memory, twin: Tensor) -> DeviceTensor:
        """A tensor that looks like `twin`, a view of `memory`."""
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            twin.size(),
            strides=twin.stride(),
            storage_offset=twin.storage_offset(),
            dtype=twin.dtype,
            device=home.torch_device,
        )
        made.home, made.memory, made.twin = home, memory, twin
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every operator with a device tensor among its arguments."""
        return call(func, args, kwargs or {})

    def data_ptr(self) -> int:
        """The twin's, which never changes."""
        return self.twin.data_ptr()

    def tolist(self) -> Any:
        """By way of the host, which waits."""
        return self.cpu().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        """Without the contents, which would have to be waited for."""
        return f"DeviceTensor({tuple(self.shape)}, dtype={self.dtype}, device={self.device})"


def new_tensor(home: Device, like: Tensor) -> DeviceTensor:
    """Undefined contents, with the shape, strides and dtype of a meta tensor."""
    memory = home.memory_for(like)
    return DeviceTensor(home, memory, memory.twin)


def create(home: Device, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Launch an operator that makes a tensor from no other."""
    made = new_tensor(home, func(*args, **_placed(kwargs, "meta"), device=torch.device("meta")))
    twin, given = made.twin, _placed(kwargs, "cpu")
    home.launch(Task(str(func), lambda: twin.copy_(func(*args, **given)), (_span(made, writes=True),)))
    return made


def call(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator does here."""
    if func in SPECIAL:
        return SPECIAL[func](*args, **kwargs)
    if _has_kernel(func, "CompositeImplicitAutograd"):
        return func.decompose(*args, **kwargs)
    if func.namespace != "aten":
        if not (_has_kernel(func, "CompositeExplicitAutograd") or _has_kernel(func, "PrivateUse1")):
            raise Unsupported(PART, f"{func} has no kernel for it")
        return func.redispatch(_KEYS, *args, **kwargs)
    return _Call(func, args, kwargs).run()


@cache
def _has_kernel(func: OpOverload, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Form:
    """What an operator's schema says. `written`: names of arguments it writes; `returned`: for each result the
    name of the argument that it is, "" for a new tensor."""

    is_view: bool
    written: frozenset[str]
    returned: tuple[str, ...]
    needs_host: bool


@cache
def _form(func: OpOverload) -> _Form:
    schema = func._schema
    by_alias = {
        alias: one.name for one in schema.arguments if one.alias_info is not None for alias in one.alias_info.before_set
    }
    written = frozenset(one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write)
    returned, is_view = [], False
    for one in schema.returns:
        alias = one.alias_info
        is_view |= alias is not None and not alias.is_write
        returned.append(by_alias[next(iter(alias.before_set))] if alias is not None and alias.is_write else "")
    plain = any("Tensor" not in str(one.type) for one in schema.returns)
    dynamic = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
    return _Form(is_view, written, tuple(returned), plain or bool(dynamic))


class _Call:
    """One call of an aten operator with device tensors."""

    def __init__(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.func, self.form = func, _form(func)
        self.args, self.kwargs = args, dict(kwargs)
        given = _tensors((args, self.kwargs))
        self.inputs = [one for one in given if isinstance(one, DeviceTensor)]
        self.home = self.inputs[0].home
        self.has_host_tensors = len(self.inputs) < len(given)
        for one in given:
            stranger = one.home is not self.home if isinstance(one, DeviceTensor) else one.dim() > 0
            if stranger:
                raise RuntimeError(f"{func}: tensors are on {self.home.torch_device} and on {one.device}")

    def run(self) -> Any:
        """Launch it, or do at once what is no work: views, and allocations."""
        target = self.kwargs.get("device")
        if target is not None and torch.device(target).type != "fakedev":
            return self._on_twins(target)
        if self.form.is_view:
            return self._view()
        if self.form.needs_host and not self._has_static_shape():
            self.home.wait_for_all(f"{self.func}")
            return _map(self._copied_in, self._on_twins("cpu"))
        return self._launch()

    def _has_static_shape(self) -> bool:
        """Indexing is the one operator whose result is known without the data, unless an index is a mask."""
        indices = self._named().get("indices") if self.func is torch.ops.aten.index.Tensor else None
        return indices is not None and all(i is None or i.dtype not in (torch.bool, torch.uint8) for i in indices)

    def _on_twins(self, place: torch.device | str) -> Any:
        with torch.inference_mode():
            return self.func(*_twins(self.args), **_placed(_twins(self.kwargs), place))

    def _view(self) -> Any:
        source = self.inputs[0]
        made = self._on_twins("cpu")
        with torch.inference_mode(source.is_inference()):  # torch: a view is what its base is
            return _map(lambda twin: DeviceTensor(self.home, source.memory, twin), made)

    def _copied_in(self, result: Tensor) -> Tensor:
        """A result that was computed while the host waited."""
        made = new_tensor(self.home, result.to("meta"))
        with torch.inference_mode():
            made.twin.copy_(result)
        return made

    def _launch(self) -> Any:
        results = self._new_results()
        new = [one for one in _tensors(results) if isinstance(one, DeviceTensor)]
        spans = [_span(one, writes=False) for one in self.inputs]
        spans += [_span(one, writes=True) for one in (*self._written(), *new)]
        if not _is_allocation(self.func):
            # Twins only: the task must not keep device tensors, whose end is when their memory counts as free.
            work = partial(
                _compute, self.func, _twins(self.args), _placed(_twins(self.kwargs), "cpu"), [one.twin for one in new]
            )
            self.home.launch(Task(str(self.func), work, tuple(spans)))
        if not self.form.returned:
            return None
        answers, named = iter(results), self._named() if any(self.form.returned) else {}
        returned = tuple(named[name] if name else next(answers) for name in self.form.returned)
        return returned[0] if len(returned) == 1 else returned

    def _named(self) -> dict[str, Any]:
        names = (one.name for one in self.func._schema.arguments)
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def _written(self) -> Iterator[DeviceTensor]:
        named = self._named() if self.form.written else {}
        for name in self.form.written:
            for one in _tensors(named.get(name)):
                if isinstance(one, DeviceTensor):
                    yield one

    def _new_results(self) -> list[Any]:
        """Memory for the results that are new tensors. Raises what torch's meta kernels raise."""
        layouts = self._layouts() if self.has_host_tensors else self._known_layouts()
        return [_map(lambda one: new_tensor(self.home, one), one) for one in layouts]

    def _known_layouts(self) -> list[Any]:
        """The same, remembered. A number in a host tensor may be another one next time, so these calls are not."""
        known = self.home.layouts
        asked = (self.func, torch.get_default_dtype(), _look((self.args, self.kwargs)))
        if (layouts := known.get(asked)) is None:
            layouts = self._layouts()
            if len(known) >= LAYOUTS:
                known.clear()
            known[asked] = layouts
        return layouts

    def _layouts(self) -> list[Any]:
        """Meta tensors, or lists of them, that look like the results that are new tensors."""
        meta = {
            id(one): torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device="meta")
            for one in self.inputs
        }
        args, kwargs = _map(lambda one: meta.get(id(one), one), (tuple(self.args), self.kwargs))
        made = self.func(*args, **_placed(kwargs, "meta"))
        for one in self.inputs:
            if meta[id(one)].size() != one.size():
                raise Unsupported(PART, f"{self.func} would resize an argument", "give an output of the right shape")
        made = (made,) if isinstance(made, Tensor) else tuple(made or ())
        if len(self.form.returned) == 1 and len(made) != 1:
            made = (list(made),)
        return [one for one, name in zip(made, self.form.returned, strict=True) if not name]


def _map(change: Callable[[Any], Any], tree: Any) -> Any:
    """Change the tensors in nested lists, tuples and dictionaries; operators take and give nothing else."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, list | tuple):
        return type(tree)([_map(change, one) for one in tree])
    if isinstance(tree, dict):
        return {name: _map(change, one) for name, one in tree.items()}
    return tree


def _look(tree: Any) -> Hashable:
    """What a meta kernel may ask arguments for: the same for two calls, and so are the layouts of their results."""
    if isinstance(tree, DeviceTensor):
        return tree.size(), tree.stride(), tree.dtype
    if isinstance(tree, list | tuple):
        return tuple([_look(one) for one in tree])
    if isinstance(tree, dict):
        return tuple([(name, _look(one)) for name, one in tree.items()])
    return type(tree), tree  # 1, 1.0 and True are equal


def _tensors(tree: Any) -> list[Tensor]:
    """All of them, in order."""
    found: list[Tensor] = []
    _map(found.append, tree)
    return found


def _twins(tree: Any) -> Any:
    """Device tensors replaced by their twins, host scalars by copies: they may change before the task runs."""
    return _map(_twin_of, tree)


def _twin_of(one: Tensor) -> Tensor:
    return one.twin if isinstance(one, DeviceTensor) else one.clone()


def _placed(kwargs: Mapping[str, Any], place: torch.device | str) -> dict[str, Any]:
    """Keyword arguments with another device."""
    return {
        name: torch.device(place) if name == "device" and one is not None else one
        for name, one in kwargs.items()
        if name != "pin_memory"
    }


def _compute(func: OpOverload, args: Any, kwargs: Any, out: Sequence[Tensor]) -> None:
    """The task: compute on the twins, and put new results where they belong."""
    made = func(*args, **kwargs)
    if out:
        for target, value in zip(out, _tensors(made), strict=True):
            target.copy_(value)


def _span(tensor: DeviceTensor, writes: bool) -> Span:
    return Span(tensor.memory.history, *bytes_of(tensor.twin), writes)


def _is_allocation(func: OpOverload) -> bool:
    return func.overloadpacket in (
        torch.ops.aten.new_empty,
        torch.ops.aten.empty_like,
        torch.ops.aten.new_empty_strided,
    )


# -- operators that cross between host and device -----------------------------------------------


def copy_(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """`Tensor.copy_`. Blocking copies to or from the host wait for the stream, as do those with unpinned memory."""
    if isinstance(to, DeviceTensor) and isinstance(source, DeviceTensor):
        if to.home is not source.home:  # clocks are a device's own
            source.home.wait_for_all("a copy to another device")
            to.home.wait_for_all("a copy from another device")
        _launch_copy(to, source, to.home)
    elif isinstance(to, DeviceTensor):
        _from_host(to, source, non_blocking)
    else:
        assert isinstance(source, DeviceTensor)
        _to_host(to, source, non_blocking)
    return to


def _launch_copy(to: Tensor, source: Tensor, home: Device, name: str = "copy_", host: str = "") -> None:
    """`host` says which of the two is a host tensor whose contents matter when the task runs: "from" or "to"."""
    to_twin, from_twin = _plain(to), _plain(source)
    uses = ((one, one is to) for one in (source, to) if not isinstance(one, DeviceTensor) or one.home is home)
    spans = tuple(span for one, writes in uses if (span := _any_span(home, one, writes)))
    home.launch(
        Task(
            name,
            lambda: to_twin.copy_(from_twin),
            spans,
            source=from_twin if host == "from" else None,
            target=to_twin if host == "to" else None,
        )
    )


def _from_host(to: DeviceTensor, source: Tensor, non_blocking: bool) -> None:
    home, plain = to.home, _plain(source)
    if home.pinned(plain) is None:
        home.refuse_in_capture("a copy from pageable host memory")
        _launch_copy(to, plain.clone(), home, "copy from the host")
    else:
        _launch_copy(to, plain, home, "copy from pinned memory", host="from")
    if not non_blocking:
        home.wait_for_stream(what="a blocking copy from the host")


def _to_host(to: Tensor, source: DeviceTensor, non_blocking: bool) -> None:
    home, plain = source.home, _plain(to)
    waits = not non_blocking or home.pinned(plain) is None
    if waits:
        home.refuse_in_capture("a blocking copy to the host")
    _launch_copy(plain, source, home, "copy to the host", host="to")
    if waits:
        home.wait_for_stream(what="a blocking copy to the host")


def _plain(tensor: Tensor) -> Tensor:
    """What a task may hold: the twin, or the host tensor without its class."""
    if isinstance(tensor, DeviceTensor):
        return tensor.twin
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def _any_span(home: Device, tensor: Tensor, writes: bool) -> Span | None:
    if isinstance(tensor, DeviceTensor):
        return _span(tensor, writes)
    history = home.pinned(tensor)
    return Span(history, *bytes_of(tensor), writes) if history is not None else None


def _to_copy(tensor: DeviceTensor, *, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
    """`Tensor.to` where something changes."""
    target = tensor.device if device is None else torch.device(device)
    kwargs = {name: value for name, value in kwargs.items() if value is not None and name != "pin_memory"}
    if target == tensor.device or target == torch.device("fakedev"):
        result: Tensor = _Call(torch.ops.aten._to_copy.default, (tensor,), kwargs).run()
        return result
    dtype = kwargs.get("dtype", tensor.dtype)
    source: Tensor = tensor if dtype == tensor.dtype else _to_copy(tensor, dtype=dtype)
    out = torch.empty_strided(source.size(), source.stride(), dtype=dtype, device=target)
    return copy_(out, source, non_blocking)


def _local_scalar_dense(tensor: DeviceTensor) -> Any:
    """`Tensor.item`."""
    tensor.home.wait_for_stream(what="reading a number")
    tensor.home.host_uses(tensor.memory.history, bytes_of(tensor.twin), False, "reading a number")
    return tensor.twin.item()


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(PART, f"{name} changes what memory a tensor has", "make a new tensor")

    return refuse


SPECIAL: dict[OpOverload, Callable[..., Any]] = {
    torch.ops.aten.copy_.default: copy_,
    torch.ops.aten._to_copy.default: _to_copy,
    torch.ops.aten._local_scalar_dense.default: _local_scalar_dense,
    torch.ops.aten.resize_.default: _refused("resize_"),
    torch.ops.aten.set_.source_Tensor: _refused("set_"),
    torch.ops.aten.set_.source_Storage_storage_offset: _refused("set_"),
}
"""Operators that are not computed on twins."""
