"""Loads beside steps on the fake device: a layer's attention does not wait for later layers, and no wait is missing.

Attention is the reference's, page by page, and so are the copies' kernels: the device's checker sees which pages each
operator uses.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from srtkit import Engine
from srtkit.engine.runner import Plans, TargetProgram
from srtkit.spec.attention import AttentionPlan, Batch, GroupView, LayerHandle
from srtkit.spec.errors import EngineError
from srtkit.spec.prefix_cache import Transfer
from srtkit.spec.step_plan import Column, StepKey, StepPlan
from srtkit.spec.tiers import TierMover, pack_transfers
from srtkit_plugin_attention_torch.backend import TorchAttention
from srtkit_plugin_cache_hiradix import memory
from srtkit_plugin_cache_hiradix.memory import Batch as Pages
from srtkit_plugin_cache_hiradix.memory import Block
from srtkit_plugin_cache_hiradix.mover import Direction, Mover
from srtkit_plugin_platform_fakedev import streams
from tests.live_server import tiny

PAGE = 16
PROMPTS = [list(range(160)), list(range(160))[::-1]]
Steps = dict[int, tuple[Batch, GroupView]]


@pytest.fixture(autouse=True)
def _page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: Steps = {}
    whole = TorchAttention.fill

    def fill(self: TorchAttention, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        whole(self, plan, batch, view)
        steps[id(plan)] = batch, view

    def store(self: TorchAttention, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        for token, page, offset in _places(*steps[id(plan)]):
            layer.planes["k"][page, offset].copy_(k[token])
            layer.planes["v"][page, offset].copy_(v[token])

    def attend(
        self: TorchAttention, plan: AttentionPlan, layer: LayerHandle, q: Tensor, out: Tensor, **more: object
    ) -> None:
        batch, view = steps[id(plan)]
        at = 0
        for row, (n, context) in enumerate(zip(batch.host_q.tolist(), batch.host_context.tolist(), strict=True)):
            pages = view.host_pages[row, : -(-context // PAGE)].tolist()
            k, v = (torch.cat([layer.planes[name][page] for page in pages])[:context] for name in ("k", "v"))
            groups = q.shape[1] // k.shape[1]
            k, v = (one.repeat_interleave(groups, dim=1).transpose(0, 1) for one in (k, v))
            scores = q[at : at + n].transpose(0, 1) @ k.transpose(1, 2) * self._spec.scale
            hidden = torch.ones(n, context, dtype=torch.bool).triu(context - n + 1).to(q.device)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
            out[at : at + n].copy_((weights @ v).transpose(0, 1))
            at += n

    def gather(plane: Tensor, batch: Pages, rows: Tensor) -> None:
        for row, page in enumerate(batch.here.tolist()):
            rows[row].copy_(plane[page])

    def scatter(plane: Tensor, batch: Pages, rows: Tensor) -> None:
        for row, page in enumerate(batch.here.tolist()):
            plane[page].copy_(rows[row])

    for name, function in (("fill", fill), ("store", store), ("attend", attend)):
        monkeypatch.setattr(TorchAttention, name, function)
    monkeypatch.setattr(memory, "gather", gather)
    monkeypatch.setattr(memory, "scatter", scatter)


def _places(batch: Batch, view: GroupView) -> Iterator[tuple[int, int, int]]:
    """(token of the step, page, offset in it)."""
    token = 0
    for row, (n, context) in enumerate(zip(batch.host_q.tolist(), batch.host_context.tolist(), strict=True)):
        for position in range(context - n, context):
            yield token, int(view.host_pages[row, position // PAGE]), position % PAGE
            token += 1


def serve(tmp_path: Path, depth: int = 1, **options: str) -> list[list[int]]:
    """Each prompt pushes the other out of the device's pages, and comes back from the host."""
    file = tmp_path / "settings.toml"
    model = tiny.make_model(tmp_path / "model")
    file.write_text(
        f'[model]\nsource = "{model}"\ndtype = "float32"\nmax_context = 192\n[platform]\nuse = "fakedev"\n'
        f'[attention]\nuse = "torch"\n[prefix_cache]\nuse = "hiradix"\n[scheduler]\ndepth = {depth}\nmax_running = 4\n'
        f"[memory]\nkv_gib = 12e-5\npage_size = {PAGE}\n"
    )
    table = {"host_gib": "0.001", "overlap": "on", "piece_kib": "1", **options}  # a block is a layer
    with Engine.from_config(
        file, {f"prefix_cache.options.hiradix.{name}": one for name, one in table.items()}
    ) as engine:
        made = []
        for prompt in PROMPTS * 2:
            made += engine.generate([list(prompt)], temperature=0, max_tokens=3, ignore_eos=True)
            time.sleep(0.2)  # the device does a task each time that somebody asks whether copies are done
        assert min(made[2].cached_tokens, made[3].cached_tokens) >= 96
        return [one.token_ids for one in made]


class Log:
    """Which tasks belong to the load or the attention of which layer, and in which order the device has done them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loads = 0
        self._tag: tuple[str, int, int] | None = None  # what, layer, and how many loads there were by then
        self._waiting: dict[int, deque[tuple[str, int, int] | None]] = defaultdict(deque)  # by queue
        self.done: list[tuple[str, int, int]] = []
        launch, step = streams.Queue.launch, streams.Queue.step

        def launched(queue: streams.Queue, task: streams.Task, host: Any) -> None:
            launch(queue, task, host)
            self._waiting[queue.number].append(self._tag)

        def stepped(queue: streams.Queue) -> bool:
            if isinstance(queue.waiting[0], streams._Launched) and (tag := self._waiting[queue.number].popleft()):
                self.done.append(tag)
            return step(queue)

        monkeypatch.setattr(streams.Queue, "launch", launched)
        monkeypatch.setattr(streams.Queue, "step", stepped)
        self._tagging(monkeypatch, Block, "load", lambda given: given[0].layers[0])
        self._tagging(monkeypatch, TorchAttention, "attend", lambda given: given[2].index)

    def _tagging(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, layer: Callable[[Any], int]) -> None:
        whole = getattr(owner, name)

        def tagged(*given: Any, **more: Any) -> None:
            index = layer(given)
            self.loads += name == "load" and index == 0 and bool(given[1])
            self._tag = name, index, self.loads
            try:
                whole(*given, **more)
            finally:
                self._tag = None

        monkeypatch.setattr(owner, name, tagged)


def test_a_layer_waits_for_its_own_load_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device does everything as late as the order allows."""
    log = Log(monkeypatch)
    tokens = serve(tmp_path)
    assert tokens[:2] == tokens[2:]
    assert log.loads >= 2
    overlapped = 0
    for load in range(1, log.loads + 1):
        first_attention = log.done.index(("attend", 0, load))
        ends = [max(at for at, one in enumerate(log.done) if one == ("load", layer, load)) for layer in (0, 1)]
        assert ends[0] < first_attention, "a layer did not wait for its load"
        overlapped += first_attention < ends[1]
    assert overlapped, "no attention began before the next layer had been loaded"


@pytest.mark.parametrize("layer", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_layer_that_does_not_wait_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    gate = Mover.gate
    monkeypatch.setattr(Mover, "gate", lambda self, index: None if index == layer else gate(self, index))
    with pytest.raises(EngineError, match="nothing orders the two"):
        serve(tmp_path)


class Noting(TierMover):
    """What it is asked, in order: the ids of a start, the layer of a gate."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def start(self, transfers: Sequence[Transfer]) -> None:
        self.asked.append([one.id for one in transfers])

    def gate(self, layer: int) -> None:
        self.asked.append(layer)

    def finished(self) -> tuple[list[int], list[int]]:
        return [], []

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("rows", "waits"), [(0, [0, 1, 2, 3]), (1, [])])
def test_a_plan_without_rows_waits_for_every_layer_that_it_loads(rows: int, waits: list[int]) -> None:
    """Else a later step, which loads nothing itself and so asks for no gate, reads pages before they are there."""
    program = object.__new__(TargetProgram)
    program._names, program._shared, program.mover = ["full"], Plans([], [], dict.fromkeys(range(4))), Noting()
    load = Transfer(7, "full", "in", "host", np.array([3], np.int32), np.array([5], np.int32))
    columns = {Column.TRANSFERS: pack_transfers([load], ["full"]), Column.ROW_SLOT: np.zeros(rows, np.int32)}
    program.move(StepPlan(0, StepKey(rows, rows), 0, 0, columns))
    assert program.mover.asked == [[7], *waits]


def test_an_outcome_that_is_told_too_early_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of the host are given to storage before the copy into them has run."""

    whole = Mover._copy

    def copy(self: Mover, direction: Direction, copies: Sequence[Transfer]) -> None:
        whole(self, direction, copies)
        ids, _, ok = self._lanes[direction].under_way.pop()
        self._lanes[direction].under_way.append((ids, [], ok))

    monkeypatch.setattr(Mover, "_copy", copy)
    storage = f'{{"use": "files", "path": "{tmp_path / "store"}"}}'
    with pytest.raises(EngineError, match="nothing orders the two"):
        serve(tmp_path, storage=storage)
