"""The engine on a device that launches asynchronously: same tokens at every depth, and no missing wait unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from srtkit import Engine
from srtkit.engine.runner import ModelRunner, TargetProgram
from srtkit.spec.errors import EngineError
from srtkit_plugin_platform_fakedev.platform import FakeEvent
from tests.live_server import tiny

PROMPTS = [list(range(5, 40)), [1, 2, 3]]
Serve = Any
"""Settings → greedy and seeded tokens of the prompts; `engines` are those it has opened."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def serve(model: Path, tmp_path: Path) -> Iterator[Serve]:
    """Greedy and seeded tokens of the prompts on a platform."""
    engines: list[Engine] = []

    def serving(platform: str, **sets: Any) -> list[list[int]]:
        file = tmp_path / f"{platform}.toml"
        file.write_text(f'[model]\nsource = "{model}"\ndtype = "float32"\n[platform]\nuse = "{platform}"\n')
        given = {"memory.kv_gib": "0.03", **{name.replace("__", "."): str(one) for name, one in sets.items()}}
        engines.append(Engine.from_config(file, given))
        always: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True}
        made = engines[-1].generate(PROMPTS, temperature=0, **always)
        made += engines[-1].generate(PROMPTS, temperature=0.8, top_k=20, top_p=0.9, seed=3, **always)
        return [one.token_ids for one in made]

    serving.engines = engines
    yield serving
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def on_cpu() -> list[list[int]]:
    """Filled by the first test that needs it."""
    return []


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_tokens_equal_those_on_the_cpu_at_every_depth(serve: Serve, on_cpu: list[list[int]], depth: int) -> None:
    if not on_cpu:
        on_cpu += serve("cpu", platform__options__threads=1)
    assert serve("fakedev", scheduler__depth=depth) == on_cpu


def test_a_step_that_is_not_waited_for_is_found(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEvent, "synchronize", lambda self, timeout: None)
    with pytest.raises(EngineError, match=r"numpy on the host, which has not waited, .*copy to the host"):
        serve("fakedev", scheduler__depth=0)


def test_staging_and_sampling_never_wait_for_the_device(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admissions, ends, page writes, greedy and drawn rows, ranks, stop ids, log-probabilities: all of it."""
    waits: dict[str, list[int]] = {}

    def counting(owner: type, name: str, counters: Callable[[Any], Any]) -> None:
        whole = getattr(owner, name)

        def counted(self: Any, *args: Any) -> Any:
            before = counters(self).host_waits
            result = whole(self, *args)
            waits.setdefault(name, []).append(counters(self).host_waits - before)
            return result

        monkeypatch.setattr(owner, name, counted)

    counting(TargetProgram, "stage", lambda self: self._platform._own.counters)
    counting(ModelRunner, "_sample", lambda self: self.platform._own.counters)
    serve("fakedev", scheduler__depth=1, memory__page_size=4)
    given: dict[str, Any] = {"max_tokens": 6, "min_tokens": 3, "stop_token_ids": [1, 2, 3], "logprobs": 2}
    serve.engines[-1].generate(PROMPTS, temperature=0.7, **given)
    assert len(waits["stage"]) > 10 < len(waits["_sample"])
    assert not any(waits["stage"]) and not any(waits["_sample"])


def test_a_ring_without_room_for_the_steps_in_flight_is_found(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps in flight write their tokens to one buffer."""
    whole = ModelRunner.__init__

    def short(self: ModelRunner, *args: Any) -> None:
        whole(self, *args)
        del self._ring[1:]

    monkeypatch.setattr(ModelRunner, "__init__", short)
    assert serve("fakedev", scheduler__depth=0)
    with pytest.raises(EngineError, match=r"numpy on the host, which has not waited, .*copy to the host"):
        serve("fakedev", scheduler__depth=1)
