"""A stop id or EOS with 0, 1 and 2 steps in flight, on a device that launches asynchronously: nothing is left of it.

Three rows serve more requests than that, so the row and the pages of one that ended are taken by the next at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from srtkit import Engine
from srtkit.engine.build import Built
from tests.live_server import tiny
from tests.live_server.clients import wait_until

PROMPT = list(range(5, 25))
"""Prefilled in three chunks."""
NEIGHBOUR = [3, 1, 4, 1, 5]
SETS = {"memory.kv_gib": "0.03", "scheduler.max_running": "3", "scheduler.chunk_tokens": "8"}
GREEDY: dict[str, Any] = {"temperature": 0}
LONG = 10


@dataclass(frozen=True)
class Served:
    """A model folder whose EOS is the token at `end` of the prompt's continuation `tokens`; the neighbour's, whole."""

    folder: Path
    tokens: list[int]
    neighbour: list[int]
    end: int


@contextmanager
def engine(folder: Path, platform: str, **sets: str) -> Iterator[Engine]:
    file = folder / f"{platform}.toml"
    file.write_text(f'[model]\nsource = "{folder}"\ndtype = "float32"\n[platform]\nuse = "{platform}"\n')
    with Engine.from_config(file, SETS | {name.replace("__", "."): value for name, value in sets.items()}) as made:
        yield made


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tiny.make_model(tmp_path_factory.mktemp("model"))
    with engine(folder, "cpu", platform__options__threads="1", scheduler__depth="0") as plain:
        made = plain.generate([PROMPT, NEIGHBOUR], **GREEDY, max_tokens=LONG, ignore_eos=True)
    tokens, neighbour = (one.token_ids for one in made)
    end = next(i for i in range(2, LONG) if tokens[i] not in tokens[:i])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": tokens[end]}))
    return Served(folder, tokens, neighbour, end)


@pytest.fixture(params=[0, 1, 2], ids=lambda depth: f"depth{depth}")
def running(
    request: pytest.FixtureRequest, served: Served, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Engine, Built]]:
    """An engine, and the parts of it that know the pages."""
    builts: list[Built] = []
    whole = Built.loop

    def loop(self: Built, *channels: Any) -> Any:
        builts.append(self)
        return whole(self, *channels)

    monkeypatch.setattr(Built, "loop", loop)
    with engine(served.folder, "fakedev", scheduler__depth=str(request.param)) as made:
        yield made, builts[0]


def test_the_end_is_the_same_and_all_pages_come_back(running: tuple[Engine, Built], served: Served) -> None:
    tokens, end = served.tokens, served.end
    asked: list[tuple[list[int], dict[str, Any], list[int], str]] = [
        (NEIGHBOUR, {"ignore_eos": True}, served.neighbour, "length"),
        (PROMPT, {"ignore_eos": True, "stop_token_ids": [tokens[0]]}, tokens[:1], "stop"),
        (PROMPT, {"ignore_eos": True, "stop_token_ids": [299, tokens[end]]}, tokens[: end + 1], "stop"),
        (PROMPT + tokens[:end], {}, tokens[end : end + 1], "stop"),
        (PROMPT, {}, tokens[: end + 1], "stop"),
        (PROMPT, {"max_tokens": end + 1}, tokens[: end + 1], "stop"),
        (PROMPT, {"max_tokens": end}, tokens[:end], "length"),
        (PROMPT, {"ignore_eos": True}, tokens, "length"),
    ]

    async def together() -> list[Any]:
        each = (made.agenerate([ids], **{**GREEDY, "max_tokens": LONG, **params}) for ids, params, *_ in asked)
        return await asyncio.gather(*each)

    made, built = running
    found = [(one.token_ids, one.finish_reason) for (one,) in asyncio.run(together())]
    assert found == [(expected, reason) for *_, expected, reason in asked]
    pool = built.scheduler.book.main.pool
    wait_until(lambda: pool.in_use == pool.retiring == 0)
    made.control("flush_cache")
    assert (pool.free, pool.cached) == (pool.total, 0)
