"""The store contract, `kv_store/1.0`: page blobs by 32-byte keys, the storage tier below a prefix cache.

A key says all that identifies the blob (model, layout, shares, the whole prefix), so equal keys mean equal
content. A store may lose anything at any time: a miss is an answer. It never gives bytes that were not put
under that very key, and it never raises for what happens to it: errors are data, in the reply.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel

from srtkit.spec.capabilities import NOT_DECLARED, Answer, Descriptor

_T = TypeVar("_T")
KEY_BYTES = 32
Blob = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Reply(Generic[_T]):
    """One value for each key of the call, in its order. `error` says why some of them are not what they could be."""

    values: tuple[_T, ...]
    error: str = ""


class KVStore(ABC):
    """Any thread may call, several at once. A call ends within `seconds` and what one blob takes to move."""

    @abstractmethod
    def put(self, blobs: Sequence[tuple[bytes, Blob]], seconds: float) -> Reply[bool]:
        """Keep (key, content) pairs; whether each is kept now, by this call or an earlier one.

        Other callers see a blob whole or not at all. The contents may be reused when it returns.
        """

    @abstractmethod
    def get(self, keys: Sequence[bytes], seconds: float) -> Reply[bytes | None]:
        """The contents; None for a miss. What was kept and is damaged now is a miss, too."""

    @abstractmethod
    def exists(self, keys: Sequence[bytes], seconds: float) -> Reply[bool]:
        """Whether `get` would probably find them. Reads no contents."""

    @abstractmethod
    def close(self) -> None:
        """Release files and connections. Idempotent; calls after it miss, with an error."""


@dataclass(frozen=True)
class KVStoreCapabilities:
    """What a store can do. `persistent`: what was kept is there after a restart of the process.

    `shared`: several processes may use one store at once, and find what the others have put.
    """

    persistent: Answer = NOT_DECLARED
    shared: Answer = NOT_DECLARED


@dataclass(frozen=True)
class KVStoreBuild:
    """What core gives a store at build."""

    options: BaseModel
    needs: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class KVStoreDescriptor(Descriptor):
    """What a plugin's hook returns. `build` raises `ConfigError` for options that can never work.

    It does not raise for a store that cannot be reached now: calls then say so, and go on trying.
    """

    capabilities: Callable[[BaseModel], KVStoreCapabilities]
    build: Callable[[KVStoreBuild], KVStore]
