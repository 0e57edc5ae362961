"""The messages of the contract over a channel: what goes in comes out, and damage is an error, never a message.

Strategies are made from the type hints of the messages, so a new message is covered the day it appears.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srtkit.spec import messages
from srtkit.spec.errors import TransportError
from srtkit.spec.transport import Receiver, Sender, TransportBuild
from srtkit_plugin_transport_inproc import InprocOptions, build

SETTINGS = settings(max_examples=150, derandomize=True, database=None, deadline=None)
Wire = tuple[Sender, Receiver]

_plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
anything = st.recursive(_plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(),
    bytes: st.binary(),
    Any: anything,
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint."""
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if isinstance(hint, UnionType):
        return st.one_of(*(values(one) for one in get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=5).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(*(values(one) for one in get_args(hint)), max_size=5)
    assert issubclass(hint, msgspec.Struct), f"no strategy for {hint}"
    return st.builds(hint, **{name: values(one) for name, one in get_type_hints(hint).items()})


any_message: st.SearchStrategy[messages.Message] = values(messages.Message)


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    transport = build(TransportBuild(Path(tmp_path_factory.mktemp("run")), InprocOptions()))
    receiver = transport.receiver("messages")
    yield transport.sender("messages"), receiver
    transport.close()


def carried(wire: Wire, frame: bytes) -> bytes:
    sender, receiver = wire
    sender.send([frame])
    arrived = receiver.receive(0)
    assert arrived is not None
    return arrived[0]


@pytest.mark.parametrize("kind", get_args(messages.Message))
@settings(SETTINGS, max_examples=40)
@given(data=st.data())
def test_what_goes_in_comes_out(wire: Wire, kind: type[messages.Message], data: st.DataObject) -> None:
    message = data.draw(values(kind))
    frame = carried(wire, messages.encode(message))
    again = messages.decode(frame)
    assert type(again) is type(message)
    assert again == message
    assert messages.encode(again) == frame
    assert messages.decode(memoryview(frame)) == message


@SETTINGS
@given(message=any_message, cut=st.floats(0, 1, exclude_max=True))
def test_a_frame_that_was_cut_is_refused(message: messages.Message, cut: float) -> None:
    frame = messages.encode(message)
    with pytest.raises(TransportError, match="not a message"):
        messages.decode(frame[: int(len(frame) * cut)])


@SETTINGS
@given(message=any_message, tail=st.binary(min_size=1))
def test_a_frame_with_something_behind_is_refused(message: messages.Message, tail: bytes) -> None:
    with pytest.raises(TransportError, match="not a message"):
        messages.decode(messages.encode(message) + tail)


@SETTINGS
@given(message=any_message, at=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_flipped_byte_gives_an_error_or_a_message_but_nothing_else(
    message: messages.Message, at: int, flip: int
) -> None:
    frame = bytearray(messages.encode(message))
    frame[at % len(frame)] ^= flip
    _decode_or_refuse(bytes(frame))


@SETTINGS
@given(frame=st.binary(max_size=200))
def test_noise_gives_an_error(frame: bytes) -> None:
    _decode_or_refuse(frame)


def _decode_or_refuse(frame: bytes) -> None:
    try:
        decoded = messages.decode(frame)
    except TransportError:
        return
    assert isinstance(decoded, messages.Message)


def test_another_schema_is_named() -> None:
    newer = msgspec.msgpack.encode((messages.SCHEMA + 1, {"type": "Unheard"}))
    with pytest.raises(TransportError, match=f"schema {messages.SCHEMA + 1}, this core speaks {messages.SCHEMA}"):
        messages.decode(newer)


def test_depth_without_end_is_refused() -> None:
    frame = messages.encode(messages.Reply(1, "here"))
    with pytest.raises(TransportError, match="not a message"):
        messages.decode(frame.replace(b"\xa4here", b"\x91" * 100_000 + b"\x01"))
