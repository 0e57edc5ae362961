"""The in-process transport: what is special about one process; the suite tests the contract."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

import srtkit_plugin_transport_inproc as plugin
from srtkit.spec.errors import PeerGone, TransportError
from srtkit.spec.transport import Transport, TransportBuild
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.transport.sides import SOON, beside


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Transport]:
    transport = plugin.build(TransportBuild(tmp_path, plugin.InprocOptions(bound=8)))
    yield transport
    transport.close()


def test_it_keeps_the_contract() -> None:
    assert shortcomings("transport:inproc") == []


def test_closing_the_transport_wakes_whoever_waits(transport: Transport) -> None:
    receiver, full = transport.receiver("quiet"), transport.sender("full")
    for _ in range(8):
        full.send([b"x"])

    def read() -> None:
        with pytest.raises(TransportError, match="closed"):
            receiver.receive(None)

    def send() -> None:
        with pytest.raises(PeerGone):
            full.send([b"x"], 30)

    with beside(read) as reading, beside(send) as sending:
        time.sleep(0.05)
        assert not reading.done()
        assert not sending.done()
        transport.close()


def test_the_bound_is_exact(transport: Transport) -> None:
    receiver, sender = transport.receiver("requests"), transport.sender("requests")
    for number in range(8):
        sender.send([b"%d" % number], 0)
    assert len(receiver.drain(0)) == 8


def test_a_channel_can_be_opened_again(transport: Transport) -> None:
    transport.receiver("requests").close()
    receiver, sender = transport.receiver("requests"), transport.sender("requests")
    sender.send([b"again"])
    assert receiver.receive(SOON) == [b"again"]


def test_a_message_without_frames_is_our_mistake(transport: Transport) -> None:
    with pytest.raises(AssertionError, match="at least one frame"):
        transport.sender("requests").send([])


def test_says_that_it_stays_in_one_process() -> None:
    declared = plugin.capabilities(plugin.InprocOptions())
    assert not declared.processes
    assert not declared.fan_out
    assert not declared.hosts


@pytest.mark.parametrize("wrong", [{"bound": 0}, {"bounds": 1}])
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        plugin.InprocOptions.model_validate(wrong)
