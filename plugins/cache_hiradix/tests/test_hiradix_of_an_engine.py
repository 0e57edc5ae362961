"""A store that hangs, and one that raises, below a whole engine: what a request waits, and what the host has then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from srtkit import Engine
from srtkit.spec.kv_store import Reply
from srtkit_plugin_kv_store_files.store import FileStore
from tests.live_server import tiny

PROMPT = [3 + i % 250 for i in range(400)]  # 25 pages


@pytest.fixture(scope="module", name="model")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("model"))


def hangs(self: FileStore, given: Sequence[Any], seconds: float) -> Reply[bool]:
    time.sleep(seconds)
    return Reply((False,) * len(given), "it is slow")


def breaks(self: FileStore, given: Sequence[Any], seconds: float) -> Reply[bool]:
    raise RuntimeError("no such host")


@pytest.mark.parametrize(("does", "fetch_seconds"), [(hangs, 0.5), (breaks, 60.0)])
def test_what_is_computed_is_on_the_host_whatever_storage_does(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: Any, fetch_seconds: float
) -> None:
    """A request waits `fetch_seconds` for one that hangs, and for one that raises not at all."""
    monkeypatch.setattr(FileStore, "exists", does)
    monkeypatch.setattr(FileStore, "put", does)
    file = tmp_path / "settings.toml"
    file.write_text(
        f'[model]\nsource = "{model}"\ndtype = "float32"\n[memory]\nkv_gib = 0.03\n[prefix_cache]\nuse = "hiradix"\n'
        f"[prefix_cache.options]\nhost_gib = 0.01\n"
        f"store_seconds = {2 * fetch_seconds}\nfetch_seconds = {fetch_seconds}\n"
        f'[prefix_cache.options.storage]\nuse = "files"\npath = "{tmp_path / "store"}"\n'
    )
    with Engine.from_config(file) as engine:
        began = time.monotonic()
        engine.generate([PROMPT], max_tokens=2)
        assert time.monotonic() - began < 30.0
        until = time.monotonic() + 30.0
        while (tiers := engine.control("cache")["cache"]["tiers"])["storage"]["failed"] < 25:
            assert time.monotonic() < until, tiers
            time.sleep(0.1)
        assert tiers["storage"]["misses"] == 24
        assert (tiers["host"]["used"], tiers["host"]["written"]) == (25, 25)
