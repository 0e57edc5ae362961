"""Named in the settings, it is served: a router knows what an engine that runs has cached."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.cache_events.tests.helpers import until
from srtkit import Engine
from srtkit.spec.errors import ConfigError
from srtkit_plugin_cache_events.client import Follower, page_hashes
from tests.live_server import tiny


def test_a_router_follows_an_engine(tmp_path: Path) -> None:
    model, file = tiny.make_model(tmp_path / "model"), tmp_path / "settings.toml"
    endpoints = f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r"
    file.write_text(f"""
[model]
source = "{model}"
[attention]
use = "torch"
[memory]
kv_gib = 0.05
page_size = {tiny.PAGE}
[prefix_cache]
use = "events"
[prefix_cache.options.events]
endpoint = "{endpoints[0]}"
replay = "{endpoints[1]}"
[prefix_cache.options.events.inner]
use = "radix"
eviction = "lfu"
""")
    follower = Follower({"a": endpoints})
    prompt, other = [*range(100)], [*range(50), *range(60, 90)]
    with Engine.from_config(file) as engine:
        until(follower, lambda view: view.current)
        [one] = engine.generate([prompt], max_tokens=20, temperature=0, ignore_eos=True)
        engine.generate([other], max_tokens=1, cache_salt="salt")
        view = until(follower, lambda view: len(view.hashes) == 7 + 5)
        whole = page_hashes([*prompt, *one.token_ids], view.page_size)
        assert len(whole) == 7
        assert follower.leading(whole) == {"a": 7}
        assert follower.leading(page_hashes(other, tiny.PAGE)) == {"a": 3}
        assert follower.leading(page_hashes(other, tiny.PAGE, b"salt")) == {"a": 5}
        with pytest.raises(ConfigError, match=r"events.endpoint: .*/e cannot be bound: Address already in use"):
            Engine.from_config(file)  # one more at the same place
    follower.close()
