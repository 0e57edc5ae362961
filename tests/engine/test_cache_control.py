"""What an operator asks of the cache, through a whole engine: what it holds, and storage that comes and goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from srtkit import Engine
from tests.live_server import tiny

PROMPT = list(range(10, 90))  # five pages of 16 tokens


def options(folder: Path, cache: str) -> dict[str, Any]:
    """Of an engine with the cache, `hiradix` with files for storage."""
    source = {"model.source": str(tiny.make_model(folder)), "model.dtype": "float32", "memory.kv_gib": 0.01}
    hiradix = (
        {"host_gib": 0.01, "storage": json.dumps({"use": "files", "path": str(folder / "store")})}
        if cache == "hiradix"
        else {}
    )
    table = {f"prefix_cache.options.hiradix.{name}": str(value) for name, value in hiradix.items()}
    return {**source, "memory.page_size": 16, "prefix_cache.use": cache, **table}


def engine(folder: Path, cache: str) -> Engine:
    file = folder / "settings.toml"
    file.write_text('[platform]\nuse = "cpu"\n')
    return Engine.from_config(file, options(folder, cache))


def test_the_engine_tells_what_its_cache_holds(tmp_path: Path) -> None:
    with engine(tmp_path, "hiradix") as one:
        one.generate([PROMPT], temperature=0, max_tokens=1)
        one.generate([[*PROMPT, 1, 2, 3]], temperature=0, max_tokens=1)
        answer = one.control("cache", limit=10, tokens=3)
        counts = answer["pages"]["full"]
        assert counts["cached"] == answer["cache"]["cached_pages"]["full"] == 5
        assert counts["total"] == counts["free"] + counts["in_use"] + counts["retiring"] + counts["cached"]
        [prefix] = answer["prefixes"]
        assert (prefix["length"], prefix["ids"], prefix["hits"], prefix["pins"]) == (80, [10, 11, 12], 1, 0)
        assert len(prefix["pages"]["full"]) == 5
        assert prefix["tiers"] == {"host": 5}
        assert answer["cache"]["tiers"]["host"]["used"] == 5
        assert one.control("cache")["prefixes"] == []
        assert one.control("storage", wanted=False) is True
        assert one.control("cache")["cache"]["tiers"]["storage"]["attached"] == 0


def test_a_cache_without_storage_says_so(tmp_path: Path) -> None:
    with engine(tmp_path, "radix") as one:
        assert one.control("storage", wanted=True) is False
