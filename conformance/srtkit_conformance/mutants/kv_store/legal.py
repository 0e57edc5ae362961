"""Legal stores: one that forgets with its process, one that keeps the first content of a key."""

from __future__ import annotations

from dataclasses import replace

from srtkit.spec.capabilities import No
from srtkit.spec.kv_store import Blob, KVStoreCapabilities, KVStoreDescriptor
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.kv_store.wrapping import InMemory


class FirstStays(InMemory):
    """A key that is there is not written again."""

    def keep(self, key: bytes, content: Blob) -> None:
        if key not in self.kept:
            super().keep(key, content)


def _told(options: object) -> KVStoreCapabilities:
    why = No("it lives in the memory of its process")
    return KVStoreCapabilities(persistent=why, shared=why)


def _in_memory(descriptor: KVStoreDescriptor) -> KVStoreDescriptor:
    return replace(descriptor, capabilities=_told, build=FirstStays)


in_memory = variant("kv_store.in_memory", of="files", sentence="Lives in memory, and says so.")(_in_memory)
