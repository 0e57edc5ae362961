"""The mover over the fake device: pages come back wherever they lay; what fails half way is told when it has ended.

And copies to storage: nothing is held while bytes move, and what was given up meanwhile is not put.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from srtkit.spec.attention import LayerHandle
from srtkit.spec.kv_store import Blob, KVStore, Reply
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit.spec.prefix_cache import Transfer
from srtkit.spec.step_plan import Ints
from srtkit.spec.tiers import MoverBuild
from srtkit_plugin_cache_hiradix import HiradixOptions, complaints, memory, storage
from srtkit_plugin_cache_hiradix.memory import Batch, Block, runs_of
from srtkit_plugin_cache_hiradix.mover import Mover
from srtkit_plugin_platform_fakedev import srtkit_platform

PAGES, LAYERS = 12, 4


class Counting(KVStore):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def put(self, blobs: Sequence[tuple[bytes, Blob]], seconds: float) -> Reply[bool]:
        self.kept |= {key: bytes(content) for key, content in blobs}
        return Reply((True,) * len(blobs))

    def get(self, keys: Sequence[bytes], seconds: float) -> Reply[bytes | None]:
        return Reply(tuple(self.kept.get(key) for key in keys))

    def exists(self, keys: Sequence[bytes], seconds: float) -> Reply[bool]:
        return Reply(tuple(key in self.kept for key in keys))

    def close(self) -> None:
        pass


@pytest.fixture(name="platform")
def platform_fixture() -> Iterator[Platform]:
    descriptor = srtkit_platform()
    options = descriptor.options()
    platform = descriptor.build(PlatformBuild(descriptor.probe(options)[0], options))
    yield platform
    platform.close()


def mover_of(platform: Platform, piece_kib: int, store: KVStore | None = None) -> tuple[Mover, list[LayerHandle]]:
    """Layers whose pages have different sizes: 1 KiB and an odd 258 bytes."""
    layers = []
    for index in range(LAYERS):
        shapes = {"k": (PAGES, 8, 2, 32), "v": (PAGES, 129, 1, 1)}
        planes = {name: platform.allocate("kv", shape, torch.bfloat16) for name, shape in shapes.items()}
        layers.append(LayerHandle(index, planes))
    table = {"use": "counting"} if store else None
    host_gib = PAGES * LAYERS * 1300 / 2**30
    options = HiradixOptions(host_gib=host_gib, overlap="on", piece_kib=piece_kib, storage=table)
    needs = {"storage": store} if store else None
    return Mover(MoverBuild(platform, {"full": layers}, b"", options, needs)), layers


def fill(layers: Sequence[LayerHandle], pages: Sequence[int]) -> None:
    """Each page of each plane with a number of its own."""
    for layer in layers:
        for number, plane in enumerate(layer.planes.values()):
            for page in pages:
                plane[page].fill_(page * 8 + layer.index * 2 + number)


def content(layers: Sequence[LayerHandle], pages: Sequence[int]) -> list[list[float]]:
    return [
        [float(plane[page].float().mean().cpu()) for layer in layers for plane in layer.planes.values()]
        for page in pages
    ]


def ints(*numbers: int) -> Ints:
    return np.array(numbers, np.int32)


def test_a_run_ends_with_its_slab() -> None:
    assert runs_of(ints(0, 1, 2, 3, 4, 6, 7, 8), 4) == [(0, 0, 4), (4, 4, 1), (5, 6, 2), (7, 8, 1)]


@pytest.mark.parametrize(("piece_kib", "slab", "stage"), [(1, 1 << 20, 1 << 20), (3, 20_000, 1), (1024, 1, 16_000)])
def test_pages_come_back_wherever_they_lay(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, piece_kib: int, slab: int, stage: int
) -> None:
    monkeypatch.setattr(memory, "SLAB_BYTES", slab)
    monkeypatch.setattr(memory, "STAGE_BYTES", stage)
    mover, layers = mover_of(platform, piece_kib)
    saved, hosted, back = ints(3, 9, 4, 1), ints(7, 2, 8, 6), ints(2, 11, 5, 10)
    fill(layers, saved.tolist())
    platform.current_stream().synchronize()
    expected = content(layers, saved.tolist())
    mover.start([Transfer(1, "full", "out", "host", saved, hosted)])
    assert told(mover, 1) == ([1], [])
    mover.start(
        [
            Transfer(2, "full", "in", "host", back[:1], hosted[:1]),
            Transfer(3, "full", "in", "host", back[1:], hosted[1:]),
        ]
    )
    for layer in range(LAYERS):
        mover.gate(layer)
    platform.current_stream().synchronize()
    assert mover.finished() == ([2, 3], []), "a step has ended, and its loads are not told"
    assert content(layers, back.tolist()) == expected
    assert len({tuple(one) for one in expected}) == 4
    mover.close()


def test_a_copy_that_fails_half_way_is_told_when_what_ran_has_ended(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages are free from then on: a copy that still ran would write into another's."""
    mover, layers = mover_of(platform, 1)
    whole = Block.load

    def failing(self: Block, batches: Sequence[Batch], stage: torch.Tensor) -> None:
        if self.layers[0] == 2:
            raise RuntimeError("the copy engine has failed")
        whole(self, batches, stage)

    monkeypatch.setattr(Block, "load", failing)
    mover.start([Transfer(1, "full", "in", "host", ints(1, 2, 3), ints(1, 2, 3))])
    assert mover.finished() == ([], []), "it is told before the device has done anything"
    mover.gate(3)  # a layer whose load was never launched: the step ends after what was
    layers[0].planes["k"][1].fill_(1.0)  # a step of the next owner, on the compute stream
    platform.current_stream().synchronize()
    assert told(mover, 1) == ([], [1])
    assert float(layers[0].planes["k"][1].float().mean().cpu()) == 1.0
    mover.close()


def told(mover: Mover, n: int) -> tuple[list[int], list[int]]:
    """What is told once `n` outcomes are there."""
    done: list[int] = []
    failed: list[int] = []
    for _ in range(10_000):
        more = mover.finished()
        done, failed = done + more[0], failed + more[1]
        if len(done) + len(failed) >= n:
            break
        time.sleep(0.0005)
    return sorted(done), sorted(failed)


def test_nobody_waits_while_pages_are_read_for_storage(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Counting()
    mover, _ = mover_of(platform, 1, store)
    [own] = mover._memory.values()
    reading, go_on, read = threading.Event(), threading.Event(), own.read

    def slow(page: int) -> memoryview:
        reading.set()
        assert go_on.wait(10.0)
        return read(page)

    monkeypatch.setattr(own, "read", slow)
    keys = (b"a" * 32, b"b" * 32)
    mover.start([Transfer(1, "full", "out", "storage", ints(1, 2), keys, needed_by=0.05)])
    assert reading.wait(10.0)
    time.sleep(0.06)
    assert mover.finished() == ([], [1]), "the step loop waits for a page, or does not give up"
    go_on.set()
    mover.close()
    assert store.kept == {}, "what was read after the copy was given up may be another page's"


def test_a_page_that_is_being_filled_is_not_given_up(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Counting()
    mover, _ = mover_of(platform, 1, store)
    [own] = mover._memory.values()
    store.kept = {b"a" * 32: bytes(own.read(0))}
    filling, go_on, filled, write = threading.Event(), threading.Event(), threading.Event(), own.write

    def slow(page: int, content: bytes) -> bool:
        filling.set()
        assert go_on.wait(10.0)
        good = write(page, content)
        filled.set()
        return good

    monkeypatch.setattr(own, "write", slow)
    mover.start([Transfer(1, "full", "in", "storage", ints(1), (b"a" * 32,), needed_by=0.05)])
    assert filling.wait(10.0)
    time.sleep(0.06)
    assert mover.finished() == ([], []), "given up while somebody writes to its page"
    go_on.set()
    done, late = told(mover, 1)
    assert done + late == [1] and filled.is_set()
    mover.close()


def test_a_prefix_that_storage_has_comes_although_one_before_it_is_missing(platform: Platform) -> None:
    """Two requests that come together: of the first it has nothing, of the second all."""
    store = Counting()
    mover, _ = mover_of(platform, 1, store)
    [own] = mover._memory.values()
    cold, warm = ([bytes([first + i]) * 32 for i in range(3)] for first in (0, 10))
    store.kept = dict.fromkeys(warm, bytes(own.read(0)))
    transfers = [
        Transfer(number, "full", "in", "storage", ints(number), (key,), needed_by=5.0)
        for number, key in enumerate([*cold, *warm], 1)
    ]
    mover.start(transfers)
    assert told(mover, 6) == ([4, 5, 6], [1, 2, 3])
    mover.close()


def test_what_is_read_does_not_wait_for_what_is_written(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Counting()
    mover, _ = mover_of(platform, 1, store)
    [own] = mover._memory.values()
    go_on, put = threading.Event(), store.put
    store.kept = {b"a" * 32: bytes(own.read(0))}
    monkeypatch.setattr(store, "put", lambda *given: go_on.wait(10.0) and put(*given))
    for number in range(1, 5):
        mover.start([Transfer(number, "full", "out", "storage", ints(number), (bytes([number]) * 32,), needed_by=9.0)])
    mover.start([Transfer(5, "full", "in", "storage", ints(5), (b"a" * 32,), needed_by=9.0)])
    assert told(mover, 1) == ([5], [])
    go_on.set()
    assert told(mover, 4) == ([1, 2, 3, 4], [])
    mover.close()


def reads(numbers: Sequence[int]) -> list[Transfer]:
    """A page each, which nobody gives up while a test runs."""
    return [Transfer(n, "full", "in", "storage", ints(n), (bytes([n]) * 32,), needed_by=100.0) for n in numbers]


def writes(numbers: Sequence[int]) -> list[Transfer]:
    return [Transfer(n, "full", "out", "storage", ints(n), (bytes([n]) * 32,), needed_by=100.0) for n in numbers]


def test_what_a_store_says_of_its_errors_is_logged_once(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not for every page, and again when it changes, or after a minute."""
    now, error = [100.0], ["the password is wrong"]
    monkeypatch.setattr(complaints, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def refused(given: Sequence[Any], seconds: float) -> Reply[bool]:
        return Reply((False,) * len(given), f"kv_store:counting: {error[0]}")

    store = Counting()
    monkeypatch.setattr(store, "exists", refused)
    monkeypatch.setattr(store, "put", refused)
    mover, _ = mover_of(platform, 1, store)
    for seconds, cause, lines in ((0, error[0], 1), (1, "the disk is full", 2), (1, error[0], 2), (60, error[0], 3)):
        now[0] += seconds
        error[0] = cause
        for start in (0, 6):
            numbers = list(range(start, start + 6))
            mover.start([*reads(numbers[:3]), *writes(numbers[3:])])
            assert told(mover, 6) == ([], numbers)
        assert len(caplog.records) == lines
    for n in range(20):  # texts that name files or seconds
        error[0] = f"page {n}"
        mover.start(reads([1]))
        assert told(mover, 1) == ([], [1])
    assert len(caplog.records) == 5
    assert {one.levelname for one in caplog.records} == {"WARNING"}
    first = "kv_store:counting: the password is wrong; pages that it does not give are computed\n  remedy: see to"
    assert caplog.messages[0].startswith(first)
    mover.close()


def test_what_a_store_raises_is_logged_and_nobody_waits_for_the_end_of_its_time(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Counting()

    def broken(given: Sequence[Any], seconds: float) -> Reply[Any]:
        raise RuntimeError("no such host")

    mover, _ = mover_of(platform, 1, store)
    [own] = mover._memory.values()
    store.kept = {bytes([n]) * 32: bytes(own.read(0)) for n in range(1, 4)}
    for call, transfers in (("exists", reads([1, 2, 3])), ("get", reads([1, 2, 3])), ("put", writes([4, 5]))):
        with monkeypatch.context() as patched:
            patched.setattr(store, call, broken)
            mover.start(transfers)
            assert told(mover, len(transfers)) == ([], [one.id for one in transfers])
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith("kv_store:counting: a copy raised RuntimeError: no such host; ")
    assert caplog.records[0].exc_info
    mover.start([*reads([1, 2, 3]), *writes([4, 5])])
    assert told(mover, 5) == ([1, 2, 3, 4, 5], []), "the threads do not go on"
    mover.close()


def test_a_store_is_not_asked_for_what_was_given_up_in_the_queue(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a call that hangs it would be asked for all of it, with no time, and that would be logged."""
    store, go_on = Counting(), threading.Event()
    asked: list[bytes] = []

    def hanging(keys: Sequence[bytes], seconds: float) -> Reply[bool]:
        asked.extend(keys)
        assert go_on.wait(10.0)
        return Reply((False,) * len(keys))

    monkeypatch.setattr(store, "exists", hanging)
    mover, _ = mover_of(platform, 1, store)
    for one in reads(range(1, 7)):
        mover.start([replace(one, needed_by=0.05)])
    assert told(mover, 6) == ([], [1, 2, 3, 4, 5, 6])
    go_on.set()
    mover.start(reads([7]))
    assert told(mover, 1) == ([], [7])
    assert len(asked) == storage.THREADS + 1
    mover.close()
