"""Where a store under test keeps its pages: a folder of the check, or a real server of its own.

A plugin whose store needs something else brings a harness: an entry point "kv_store.NAME" in the group
`srtkit.conformance.v1` that leads to a `Harness`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib.metadata import entry_points
from pathlib import Path

from pydantic import BaseModel

from srtkit.spec.kv_store import KVStore, KVStoreBuild
from srtkit_conformance.kits.kv_store.redis_server import redis_server
from srtkit_conformance.target import Target

HARNESSES = "srtkit.conformance.v1"

Harness = Callable[[BaseModel, Path], AbstractContextManager[BaseModel]]
"""Options and an empty folder → the options of a store that nobody else uses, which is there inside the context."""


@contextmanager
def in_folder(options: BaseModel, folder: Path) -> Iterator[BaseModel]:
    """A store whose option `path` names its folder."""
    yield options.model_copy(update={"path": str(folder)})


@contextmanager
def on_redis(options: BaseModel, folder: Path) -> Iterator[BaseModel]:
    """A store on a Redis of its own, which its option `url` names."""
    with redis_server(folder) as server:
        yield options.model_copy(update={"url": server.url})


@contextmanager
def anywhere(options: BaseModel, folder: Path) -> Iterator[BaseModel]:
    """A store that needs no place."""
    yield options


def harness_for(target: Target) -> Harness:
    """The plugin's own harness, else one of ours."""
    for entry in entry_points(group=HARNESSES, name=f"kv_store.{target.name}"):
        own: Harness = entry.load()
        return own
    if "redis" in (target.name, target.origin):
        return on_redis
    return in_folder if "path" in type(target.options).model_fields else anywhere


@contextmanager
def place(target: Target) -> Iterator[BaseModel]:
    """The options of a store nobody else uses."""
    folder = target.folder / "store"
    folder.mkdir()
    with harness_for(target)(target.options, folder) as options:
        yield options


def build(target: Target, options: BaseModel) -> KVStore:
    """The store, as core builds it."""
    store: KVStore = target.descriptor.build(KVStoreBuild(options))
    return store


@contextmanager
def opened(target: Target) -> Iterator[KVStore]:
    """An empty store, closed at the end."""
    with place(target) as options, closing(build(target, options)) as store:
        yield store
