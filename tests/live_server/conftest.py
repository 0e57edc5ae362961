"""A tiny model, plugins that misbehave, and one plain server for all tests that leave it whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.live import LiveServer, live_server
from tests.live_server import tiny
from tests.plugins.toys import Site

COARSE = """
from dataclasses import replace
from srtkit.spec.hookspecs import hookimpl
import srtkit_plugin_attention_torch as torch_plugin

@hookimpl
def srtkit_attention():
    fine = torch_plugin.srtkit_attention()
    return replace(fine, capabilities=lambda facts: replace(fine.capabilities(facts), page_sizes=(64,)))
"""
NEEDY = """
from dataclasses import replace
from srtkit.spec.capabilities import Need
from srtkit.spec.hookspecs import hookimpl
import srtkit_plugin_cache_radix as radix

@hookimpl
def srtkit_prefix_cache():
    return replace(radix.srtkit_prefix_cache(), needs=lambda options: (Need("inner", "transport", "zmq"),))
"""

Start = Callable[..., AbstractContextManager[LiveServer]]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """`srt serve`, run in this process until it fails, sets handlers."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return tiny.make_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def config(model: Path) -> Path:
    """A settings file that serves it."""
    return tiny.write_config(model.parent / "tiny.toml", model)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Attention `wrapped`, `unimportable`, `coarse` (pages of 64) and a cache `needy`, for child processes."""
    site = Site(tmp_path_factory.mktemp("site"))
    source = Path(tiny.__file__).with_name("wrapped_attention.py").read_text()
    site.plugin("attention", "wrapped", source)
    site.plugin("attention", "unimportable", 'raise RuntimeError("no instrument found")\n')
    site.plugin("attention", "coarse", COARSE)
    site.plugin("prefix_cache", "needy", NEEDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site.path), prepend=os.pathsep)
        yield site


@pytest.fixture(scope="session")
def start(config: Path, site: Site) -> Start:
    """Starts a server of the tiny model: `with start({"scheduler.depth": "1"}) as server`."""

    def starting(sets: Mapping[str, str] | None = None) -> AbstractContextManager[LiveServer]:
        return live_server(config, sets)

    return starting


@pytest.fixture(scope="session")
def server(start: Start) -> Iterator[LiveServer]:
    """The plain server."""
    with start() as server:
        yield server
