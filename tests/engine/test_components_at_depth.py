"""Models with windows and states where steps are launched ahead: the tokens of a device that never does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from srtkit import Engine
from tests.parity.test_small_pools import CACHES, MODELS, SIZES

STEM = list(range(1, 27))
ROUNDS = ([[*STEM, 3, 4], [7] * 9], [[*STEM, 3, 4, 5], [*STEM, 9, 9]])


def tokens(folder: Path, name: str, platform: str, depth: int) -> tuple[list[list[int]], int]:
    """Greedy tokens of all rounds, and how many prompt tokens were cached."""
    source, file = folder / "model.json", folder / f"{platform}.toml"
    source.write_text(json.dumps(SIZES | MODELS[name]))
    file.write_text(
        f'model = {{ source = "{source}", dtype = "float32" }}\n'
        'model_loader = { use = "dummy", options.dummy = { std = 0.3, tokenizer = "none" } }\n'
        f'platform.use = "{platform}"\nattention.use = "torch"\nrecurrent.use = "torch"\n'
        f'memory = {{ page_size = 4, kv_gib = 0.001 }}\nprefix_cache.use = "{CACHES[name]}"\n'
        f"scheduler = {{ chunk_tokens = 12, max_running = 3, depth = {depth} }}\n"
    )
    with Engine.from_config(file) as engine:
        found = [one for prompts in ROUNDS for one in engine.generate(prompts, temperature=0, max_tokens=5)]
    return [one.token_ids for one in found], sum(one.cached_tokens for one in found)


@pytest.mark.parametrize("name", ["windows", pytest.param("states", marks=pytest.mark.full)])
def test_tokens_equal_those_of_depth_0(name: str, tmp_path: Path) -> None:
    on_cpu, cached = tokens(tmp_path, name, "cpu", 0)
    assert cached > 0
    assert len({tuple(some) for some in on_cpu}) > 2, "a model that always says the same shows nothing"
    assert tokens(tmp_path, name, "fakedev", 1)[0] == on_cpu
