"""What goes over the sockets: MessagePack arrays, described in README.md for readers in other languages.

New fields come at the end of an array and are optional; `VERSION` rises when an old reader would be wrong.
Knows no sockets and no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec

VERSION = 1
Kind = Literal["messages", "snapshot", "gone", "error"]
T = TypeVar("T")


class Event(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """As `srtkit.spec.prefix_cache.CacheEvent`: `hashes` are consecutive pages, the first one after `parent`."""

    kind: Literal["stored", "removed", "cleared"]
    hashes: Sequence[int] = ()
    parent: int = 0
    namespace: bytes = b""


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """A message: the events between two sequence numbers of a run. `time` is seconds since the epoch, on the server."""

    version: int
    run: int
    sequence: int
    time: float
    page_size: int
    events: tuple[Event, ...]


class Request(msgspec.Struct, array_like=True, frozen=True):
    """`messages`: those of `run` from `sequence` on; `snapshot`: what is stored now."""

    version: int
    want: Literal["messages", "snapshot"]
    run: int = 0
    sequence: int = 0


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """The head of an answer, whose further frames are batches; `first` to `last` are kept for replay.

    `gone`: the wanted messages are not kept, or of another run; `error`: `note` says what is wrong with the request.
    """

    version: int
    kind: Kind
    run: int
    first: int
    last: int
    note: str = ""


encode = msgspec.msgpack.Encoder().encode


def _decode(kind: type[T]) -> Callable[[bytes], T]:
    """Of one kind. Raises `msgspec.MsgspecError` for bytes that are none."""
    plain = msgspec.msgpack.Decoder(kind).decode

    def decode(message: bytes) -> T:
        try:
            return plain(message)
        except RecursionError:
            raise msgspec.DecodeError("the message nests too deeply") from None

    return decode


decode_batch, decode_request, decode_reply = _decode(Batch), _decode(Request), _decode(Reply)
