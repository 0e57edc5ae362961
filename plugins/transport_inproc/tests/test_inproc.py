"""The in-process transport: the contract, and what is special about one process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pluggy
import pytest
from pydantic import ValidationError

import srtkit_plugin_transport_inproc as plugin
from plugins.transport_inproc.tests.transport_contract import SOON, Sides, TransportContract, in_thread
from srtkit.spec import hookspecs
from srtkit.spec.errors import PeerGone, TransportError
from srtkit.spec.transport import TransportBuild
from srtkit.spec.versions import CONTRACTS


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    transport = plugin.build(TransportBuild(tmp_path, plugin.InprocOptions(bound=8)))
    yield Sides(transport, transport)
    transport.close()
    assert list(tmp_path.iterdir()) == []


class TestInproc(TransportContract):
    """Everything the contract promises."""


def test_closing_the_transport_wakes_whoever_waits(sides: Sides) -> None:
    receiver, _ = sides.channel("quiet")
    _, full = sides.channel("full")
    for _ in range(8):
        full.send([b"x"])
    with in_thread(lambda: receiver.receive(None)) as reading, in_thread(lambda: full.send([b"x"], 30)) as sending:
        time.sleep(0.05)
        assert not reading.done()
        assert not sending.done()
        sides.receiving.close()
        with pytest.raises(TransportError, match="closed"):
            reading.result(SOON)
        with pytest.raises(PeerGone):
            sending.result(SOON)


def test_the_bound_is_exact(sides: Sides) -> None:
    receiver, sender = sides.channel()
    for number in range(8):
        sender.send([b"%d" % number], 0)
    assert len(receiver.drain(0)) == 8


def test_says_that_it_stays_in_one_process() -> None:
    declared = plugin.capabilities(plugin.InprocOptions())
    assert not declared.processes
    assert not declared.fan_out
    assert not declared.hosts


@pytest.mark.parametrize("wrong", [{"bound": 0}, {"bounds": 1}])
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        plugin.InprocOptions.model_validate(wrong)


def test_the_hook_is_registered_and_found_by_name() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    (descriptor,) = manager.hook.srtkit_transport()
    assert descriptor.contract == CONTRACTS["transport"].version
    (point,) = entry_points(group=CONTRACTS["transport"].group, name="inproc")
    assert point.load() is plugin


def test_the_descriptor_is_light() -> None:
    code = (
        "import sys, srtkit_plugin_transport_inproc as p; p.srtkit_transport()\n"
        "assert not {'torch', 'srtkit_plugin_transport_inproc.channels'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
