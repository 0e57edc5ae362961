"""How a wrong store is made: the right one inside a wrapper, or another one that is simple enough to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from srtkit.spec.kv_store import Blob, KVStore, KVStoreBuild, KVStoreDescriptor, Reply

Make = Callable[[KVStoreDescriptor], KVStoreDescriptor]
Blobs = Sequence[tuple[bytes, Blob]]
Keys = Sequence[bytes]
CLOSED = "closed"


class Wrapped(KVStore):
    """Hands every call to `inner`; a fault overrides one."""

    def __init__(self, inner: KVStore) -> None:
        self.inner = inner

    def put(self, blobs: Blobs, seconds: float) -> Reply[bool]:
        return self.inner.put(blobs, seconds)

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        return self.inner.get(keys, seconds)

    def exists(self, keys: Keys, seconds: float) -> Reply[bool]:
        return self.inner.exists(keys, seconds)

    def close(self) -> None:
        self.inner.close()


class InMemory(KVStore):
    """A dictionary. It is gone with its process."""

    def __init__(self, given: KVStoreBuild) -> None:
        self.kept: dict[bytes, Blob] = {}
        self.closed = False

    def put(self, blobs: Blobs, seconds: float) -> Reply[bool]:
        if self.closed:
            return Reply((False,) * len(blobs), CLOSED)
        for key, content in blobs:
            self.keep(key, content)
        return Reply((True,) * len(blobs))

    def keep(self, key: bytes, content: Blob) -> None:
        """Keep one."""
        self.kept[key] = bytes(content)

    def get(self, keys: Keys, seconds: float) -> Reply[bytes | None]:
        if self.closed:
            return Reply((None,) * len(keys), CLOSED)
        return Reply(tuple(map(self.find, keys)))

    def find(self, key: bytes) -> bytes | None:
        """The content of one."""
        content = self.kept.get(key)
        return None if content is None else bytes(content)

    def exists(self, keys: Keys, seconds: float) -> Reply[bool]:
        found = self.get(keys, seconds)
        return Reply(tuple(one is not None for one in found.values), found.error)

    def close(self) -> None:
        self.closed = True


class PlainFiles(InMemory):
    """A file a blob in the folder that the option `path` names, with nothing but the content in it."""

    def __init__(self, given: KVStoreBuild) -> None:
        super().__init__(given)
        self.folder = Path(vars(given.options)["path"])

    def keep(self, key: bytes, content: Blob) -> None:
        unfinished = self.folder / f"{key.hex()}.unfinished"
        unfinished.write_bytes(content)
        unfinished.replace(self.folder / key.hex())

    def find(self, key: bytes) -> bytes | None:
        place = self.folder / key.hex()
        return place.read_bytes() if place.exists() else None


@dataclass(frozen=True)
class BuildAround:
    """A build function: what `inner` builds, inside a wrapper."""

    inner: Callable[[KVStoreBuild], KVStore]
    wrapper: Callable[[KVStore], KVStore]

    def __call__(self, given: KVStoreBuild) -> KVStore:
        return self.wrapper(self.inner(given))


def around(wrapper: type[Wrapped]) -> Make:
    """The plugin's store inside `wrapper`."""
    return lambda descriptor: replace(descriptor, build=BuildAround(descriptor.build, wrapper))


def another(store: type[InMemory]) -> Make:
    """Another store in place of the plugin's."""
    return lambda descriptor: replace(descriptor, build=store)
