"""Faults of `Engine`, the engine in this process: what is raised, and that nothing hangs or stays."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from srtkit import Engine
from srtkit.spec.errors import ConfigError, EngineError, LoaderError, PluginBroken, RequestError
from tests.live_server import tiny
from tests.plugins.toys import Site

LONG = {"max_tokens": tiny.CONTEXT - 100, "ignore_eos": True}
Make = Callable[..., Engine]


@pytest.fixture
def make(config: Path, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    """Makes engines; afterwards no thread and no folder of any is left."""
    monkeypatch.syspath_prepend(site.path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    made: list[Engine] = []
    others = set(threading.enumerate())

    def making(**sets: str) -> Engine:
        made.append(Engine.from_config(config, {name.replace("__", "."): value for name, value in sets.items()}))
        return made[-1]

    yield making
    for engine in made:
        engine.close()
    left = [thread.name for thread in threading.enumerate() if thread not in others]
    assert [name for name in left if name.startswith("srtkit")] == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_closing_ends_what_another_thread_waits_for(make: Make, tmp_path: Path) -> None:
    (tmp_path / "brake").touch()
    engine = make(attention__use="wrapped", attention__options__brake=str(tmp_path / "brake"))
    stream = engine.stream("A stream", **LONG)
    assert next(stream).token_ids
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.generate, "Not a stream", **LONG)
        assert next(stream).token_ids
        engine.close()
        with pytest.raises(EngineError, match="is closed"):
            waiting.result(10)
    with pytest.raises(EngineError, match="is closed"):
        list(stream)
    with pytest.raises(EngineError, match="is closed"):
        engine.generate("One more")


def test_a_stream_that_is_left_frees_its_pages(make: Make) -> None:
    engine = make(memory__kv_gib="0.0006")  # one such prompt fits, two do not
    expected = engine.generate("Hello", temperature=0, max_tokens=8)
    for i in range(4):
        stream = engine.stream(f"{i}" * 900, **LONG, cache_salt=str(i))
        assert next(stream).token_ids
        stream.close()
    assert engine.generate("Hello", temperature=0, max_tokens=8)[0].token_ids == expected[0].token_ids


def test_more_prompts_than_the_queue_of_a_server_would_hold(make: Make) -> None:
    engine = make(scheduler__max_waiting="2", scheduler__max_running="3")
    prompts = [f"Prompt {i}" for i in range(40)]
    together = engine.generate(prompts, temperature=0, max_tokens=6, ignore_eos=True)
    alone = [engine.generate(prompt, temperature=0, max_tokens=6, ignore_eos=True)[0] for prompt in prompts[:5]]
    assert [one.token_ids for one in together[:5]] == [one.token_ids for one in alone]
    assert all(len(one.token_ids) == 6 for one in together)


MISTAKES: list[tuple[object, dict[str, object], type[Exception], str]] = [
    (["fits", "x" * tiny.CONTEXT], {}, RequestError, "the context holds"),
    ([[5], [tiny.VOCABULARY]], {}, RequestError, "outside of the vocabulary"),
    ([[5, -1]], {}, RequestError, "outside of the vocabulary"),
    (["Hello"], {"max_tokens": 0}, RequestError, "max_tokens"),
    (["Hello"], {"temprature": 1}, ConfigError, "unknown parameter 'temprature'"),
    (["Hello"], {"seed": 2**63}, RequestError, "seed: expected an integer of 64 bits"),
    (["Hello"], {"max_tokens": "5"}, RequestError, "max_tokens: expected `int"),
    ([5.5], {}, RequestError, "prompt"),
    (5, {}, RequestError, "prompt"),
    (None, {}, RequestError, "prompt"),
]


def test_a_mistake_of_the_caller_leaves_the_engine_whole(make: Make) -> None:
    engine = make()
    for prompts, params, error, words in MISTAKES:
        with pytest.raises(error, match=words):
            engine.generate(prompts, **params)
        assert len(engine.generate("Hello", max_tokens=3, ignore_eos=True)[0].token_ids) == 3


def test_arguments_of_a_wrong_type_are_named(make: Make, config: Path) -> None:
    engine = make()
    for prompt in (5, None):
        with pytest.raises(RequestError, match="prompt: a text or a list"):
            next(engine.stream(prompt))
    with pytest.raises(EngineError, match="unknown operation"):
        engine.control(5)
    for op, given in (("cache", {"limits": 3}), ("cache", {"limit": "x"}), ("storage", {}), ("info", {"x": 1})):
        with pytest.raises(EngineError, match=op):
            engine.control(op, **given)
    assert engine.generate("Hello", max_tokens=2)
    with pytest.raises(ConfigError, match="overrides is not a dict"):
        Engine.from_config(config, ["server.port=1"])


def test_overrides_may_be_nested_and_have_types(make: Make, config: Path) -> None:
    overrides = {"scheduler": {"max_running": 3}, "platform": {"options": {"threads": 1}}, "ops.use": ["cpu"]}
    with Engine.from_config(config, overrides) as engine:
        assert engine.generate("Hello", max_tokens=2, ignore_eos=True)[0].token_ids
    with pytest.raises(ConfigError, match=r"--set scheduler\.max_runing"):
        Engine.from_config(config, {"scheduler": {"max_runing": 3}})


def test_a_plugin_that_raises_in_a_step(make: Make, tmp_path: Path) -> None:
    trigger = tmp_path / "now"
    engine = make(attention__use="wrapped", attention__options__fail="step", attention__options__trigger=str(trigger))
    assert engine.generate("Before")
    trigger.touch()
    for _ in range(2):
        with pytest.raises(EngineError, match="attention:wrapped: raised RuntimeError during a step: a string broke"):
            engine.generate("After")


def test_a_plugin_that_raises_at_build(make: Make) -> None:
    with pytest.raises(PluginBroken, match="attention:wrapped: raised RuntimeError while starting: the strings"):
        make(attention__use="wrapped", attention__options__fail="build")


def test_broken_weights(make: Make, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(LoaderError, match=r"model\.safetensors"):
        make(model__source=str(tmp_path / "model"))
