"""The dump: one layer's call of one step with all that it reads, as a safetensors file that describes itself.

Page ids are numbered anew (0 stays 0, `page_ids` holds the old ones), so that only pages that rows read are kept.
Knows no backend; `FORMAT` changes when an older reader would misread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from srtkit.spec.attention import AttentionSpec, Batch, GroupView, LayerHandle, PrefixGroups, TreeMask
from srtkit.spec.errors import LoaderError
from srtkit.spec.kv import KVLayout
from srtkit_plugin_attention_shadow.compare import Finding

FORMAT = "srtkit-shadow-dump/1"


@dataclass(frozen=True)
class Origin:
    """A plugin by name ("attention:triton"), and the distribution that it came from."""

    plugin: str
    distribution: str
    version: str

    @property
    def name(self) -> str:
        """Without the kind."""
        return self.plugin.partition(":")[2]

    def __str__(self) -> str:
        return f"{self.plugin} ({self.distribution} {self.version})"


@dataclass(frozen=True)
class Meta:
    """All that is no tensor. `step` counts the plan's fills; `rows_left_out` were too large for the file."""

    spec: AttentionSpec
    layout: KVLayout
    group: str
    layer: int
    step: int
    leading: int
    q_len: int
    covered: Literal["all", "leading", "rest"]
    features: tuple[str, ...]
    live: Origin
    reference: Origin
    platform: Origin
    device: str
    versions: dict[str, str]
    tolerance: float
    findings: tuple[Finding, ...]
    rows_left_out: int = 0


_META = TypeAdapter(Meta)


@dataclass(frozen=True)
class Dump:
    """R rows of T tokens, on the CPU. Nothing is changed in place.

    `q` [T, q_heads, d]; `k`, `v` as given to `store`, None where a layer stores nothing; `out`, `wanted`
    [T, q_heads, dv] of the live backend and the reference. `planes` [pages, *plane shape]; `page_ids` int32 [pages].
    `page_table` int32 [R, width]; `slot_mapping`, `positions` int32 [T]; `n_query`, `context`, `slots` int32 [R].
    `groups` int32 [3, groups]: first row, members, pages. `tree` as `TreeMask.bits`.
    """

    meta: Meta
    q: Tensor
    out: Tensor
    wanted: Tensor
    planes: dict[str, Tensor]
    page_ids: Tensor
    page_table: Tensor
    slot_mapping: Tensor
    positions: Tensor
    n_query: Tensor
    context: Tensor
    slots: Tensor
    k: Tensor | None = None
    v: Tensor | None = None
    sinks: Tensor | None = None
    scales: dict[str, Tensor] = field(default_factory=dict)
    groups: Tensor | None = None
    tree: Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows."""
        return len(self.n_query)

    def tokens(self, row: int) -> slice:
        """The query tokens of a row."""
        end = int(self.n_query[: row + 1].sum())
        return slice(end - int(self.n_query[row]), end)

    def batch(self, device: torch.device) -> Batch:
        """The rows as a backend is given them; lengths are exact."""
        bounds = torch.cumsum(torch.cat((torch.zeros(1, dtype=torch.int32), self.n_query)), 0).int()
        meta, groups = self.meta, self.groups
        return Batch(
            rows=self.rows,
            tokens=len(self.q),
            leading=meta.leading,
            q_len=meta.q_len,
            cu_q=bounds.to(device),
            context=self.context.to(device),
            positions=self.positions.to(device),
            slots=self.slots.to(device),
            host_q=self.n_query.numpy().astype(np.int32),
            host_context=self.context.numpy().astype(np.int32),
            features=frozenset(meta.features),
            tree=None if self.tree is None else TreeMask(self.tree.to(device)),
            groups=None if groups is None else PrefixGroups(*(one.numpy() for one in groups)),
        )

    def view(self, device: torch.device) -> GroupView:
        """Where the rows' entries stand."""
        table = self.page_table
        host = table.numpy().astype(np.int32)
        return GroupView(self.meta.layout.page_tokens, table.to(device), self.slot_mapping.to(device), host)

    def handle(self, device: torch.device) -> LayerHandle:
        """The layer over copies of the pages."""
        return LayerHandle(
            self.meta.layer,
            {name: plane.to(device, copy=True) for name, plane in self.planes.items()},
            None if self.sinks is None else self.sinks.to(device),
            {name: scale.to(device) for name, scale in self.scales.items()} or None,
        )

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        tensors = {name: getattr(self, name) for name in (*_NEEDED, *_OPTIONAL)}
        tensors |= {f"plane.{name}": plane for name, plane in self.planes.items()}
        tensors |= {f"scale.{name}": scale for name, scale in self.scales.items()}
        written = path.with_suffix(".part")
        given = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
        save_file(given, written, {"format": FORMAT, "meta": _META.dump_json(self.meta).decode()})
        written.replace(path)


_NEEDED = ("q", "out", "wanted", "page_ids", "page_table", "slot_mapping", "positions", "n_query", "context", "slots")
_OPTIONAL = ("k", "v", "sinks", "groups", "tree")


def load(path: Path) -> Dump:
    """Read a dump. Raises `LoaderError` for a file that is none, or of another version."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise LoaderError(str(path), f"cannot be read: {error}") from None
    if metadata.get("format") != FORMAT:
        remedy = "install the version of srtkit-plugin-attention-shadow that wrote it" if "format" in metadata else ""
        raise LoaderError(str(path), f"is {metadata.get('format', 'no dump')}, this version reads {FORMAT}", remedy)
    try:
        meta = _META.validate_json(metadata["meta"])
        planes, scales = (
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            for prefix in ("plane.", "scale.")
        )
        plain = {name: tensors[name] for name in _NEEDED} | {name: tensors.get(name) for name in _OPTIONAL}
        return Dump(meta, planes=planes, scales=scales, **plain)  # type: ignore[arg-type]
    except (KeyError, ValidationError) as error:
        raise LoaderError(str(path), f"is damaged: {error}") from None


def only_rows(dump: Dump, rows: list[int]) -> Dump:
    """The dump with these rows (ascending), and no pages but theirs."""
    tokens = torch.cat([torch.arange(len(dump.q))[dump.tokens(row)] for row in rows])
    at = torch.tensor(rows)
    leading = sum(row < dump.meta.leading for row in rows)
    number = {row: i for i, row in enumerate(rows)}
    found = tuple(replace(one, row=number[one.row]) for one in dump.meta.findings if one.row in number)
    place = {int(old): new for new, old in enumerate(tokens.tolist())}
    found = tuple(replace(one, token=place[one.token]) for one in found)
    picked = {
        name: None if tensor is None else tensor[tokens]
        for name, tensor in (("q", dump.q), ("out", dump.out), ("wanted", dump.wanted), ("k", dump.k), ("v", dump.v))
    }
    tree = None if dump.tree is None or not leading else dump.tree[at[:leading]]
    return used_pages(
        replace(
            dump,
            meta=replace(dump.meta, leading=leading, findings=found),
            **picked,  # type: ignore[arg-type]
            page_table=dump.page_table[at],
            slot_mapping=dump.slot_mapping[tokens],
            positions=dump.positions[tokens],
            n_query=dump.n_query[at],
            context=dump.context[at],
            slots=dump.slots[at],
            groups=_groups_of(dump, number),
            tree=tree,
        )
    )


def used_pages(dump: Dump) -> Dump:
    """The dump with the pages that its rows read and write, numbered anew, and page 0."""
    size = dump.meta.layout.page_tokens
    width = max(1, int(-(-dump.context.max() // size)))
    table = dump.page_table[:, :width].clone()
    for row, context in enumerate(dump.context.tolist()):
        table[row, -(-context // size) :] = 0
    slots = dump.slot_mapping.long()
    kept = torch.unique(torch.cat((torch.zeros(1, dtype=torch.long), table.flatten().long(), slots // size)))
    at = torch.zeros(int(kept.max()) + 1, dtype=torch.int32)
    at[kept] = torch.arange(len(kept), dtype=torch.int32)
    return replace(
        dump,
        planes={name: _pages(plane, kept) for name, plane in dump.planes.items()},
        page_ids=dump.page_ids[kept],
        page_table=at[table.long()],
        slot_mapping=(at[slots // size] * size + dump.slot_mapping % size).int(),
    )


def _pages(plane: Tensor, kept: Tensor) -> Tensor:
    raw = plane.view(torch.uint8) if plane.dtype.itemsize == 1 else plane  # indexing does not know fp8
    return raw[kept.to(plane.device)].view(plane.dtype)


def _groups_of(dump: Dump, number: dict[int, int]) -> Tensor | None:
    """The prefix groups among the rows that stay, None where fewer than two of each do."""
    if dump.groups is None:
        return None
    groups = []
    for first, members, pages in dump.groups.T.tolist():
        stay = [number[row] for row in range(first, first + members) if row in number]
        if len(stay) > 1:
            groups.append((stay[0], len(stay), pages))
    return torch.tensor(groups, dtype=torch.int32).T.contiguous() if groups else None
