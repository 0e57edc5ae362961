"""The ZeroMQ transport: what is special about its sockets, files and credit; the suite tests the contract."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from pydantic import ValidationError

import srtkit_plugin_transport_zmq as plugin
from srtkit.spec.errors import PeerGone, TransportError, TransportTimeout
from srtkit.spec.transport import Sender, Transport, TransportBuild
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.transport.sides import SOON, beside, fill, pattern


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder with a short path; tests that kill nobody must leave it empty."""
    path = Path(tempfile.mkdtemp(prefix="srtz-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def build(folder: Path) -> Iterator[Callable[[], Transport]]:
    """Makes transports of one run, as its processes do; closes them all."""
    made: list[Transport] = []

    def make() -> Transport:
        made.append(plugin.build(TransportBuild(folder, plugin.ZmqOptions(bound=8))))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


PRELUDE = """
import sys, time
from pathlib import Path
from srtkit.spec.transport import TransportBuild
from srtkit_plugin_transport_zmq import ZmqOptions, build
transport = build(TransportBuild(Path(sys.argv[1]), ZmqOptions(bound=8)))
"""


@contextmanager
def child(folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A real process with a transport of the run; it is up when it has printed a line, and killed at the end."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


HOLDS_A_RECEIVER = """
    receiver = transport.receiver("requests")
    print("up", flush=True)
    receiver.receive(None)
    time.sleep(60)
"""


def test_it_keeps_the_contract() -> None:
    assert shortcomings("transport:zmq") == []


def seconds_until_gone(sender: Sender) -> float:
    """How long a sender needs to notice that its receiver has gone."""
    begin = time.monotonic()
    while time.monotonic() < begin + SOON:
        try:
            sender.send([b"x"], 1)
        except PeerGone:
            return time.monotonic() - begin
        time.sleep(0.01)
    raise AssertionError("a dead receiver was not noticed")


def test_a_killed_receiver_is_noticed(folder: Path, build: Callable[[], Transport]) -> None:
    sender = build().sender("requests")
    with child(folder, HOLDS_A_RECEIVER) as process:
        sender.send([b"hello"])
        process.send_signal(signal.SIGKILL)
        process.wait(SOON)
        assert seconds_until_gone(sender) < 1
    with pytest.raises(PeerGone, match="closed or died"):
        build().sender("requests").send([b"x"])
    begin = time.monotonic()
    sender.close()
    assert time.monotonic() - begin < 0.5, "lingers for a peer that is dead"


def test_a_dead_receivers_channel_can_be_opened_again(folder: Path, build: Callable[[], Transport]) -> None:
    with child(folder, HOLDS_A_RECEIVER) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(SOON)
    assert {file.suffix for file in folder.iterdir()} == {".sock", ".lock"}
    transport = build()
    receiver, sender = transport.receiver("requests"), build().sender("requests")
    sender.send([b"x"])
    assert receiver.receive(SOON) == [b"x"]
    transport.close()
    assert list(folder.iterdir()) == []


def test_a_living_receiver_in_another_process_is_not_replaced(folder: Path, build: Callable[[], Transport]) -> None:
    with child(folder, HOLDS_A_RECEIVER), pytest.raises(TransportError, match="has a receiver already"):
        build().receiver("requests")


def test_a_channel_full_of_large_messages_loses_none(build: Callable[[], Transport]) -> None:
    receiver, sender = build().receiver("requests"), build().sender("requests")
    body = pattern(1 << 20)
    assert fill(sender, body) == 8
    with beside(lambda: sender.send([b"8", body], SOON)):
        got = [receiver.receive(SOON) for _ in range(9)]
    assert got == [[b"%d" % number, body] for number in range(9)]


def test_a_channel_can_be_opened_again(build: Callable[[], Transport]) -> None:
    build().receiver("requests").close()
    receiver, sender = build().receiver("requests"), build().sender("requests")
    sender.send([b"again"])
    assert receiver.receive(SOON) == [b"again"]


def test_a_message_without_frames_is_our_mistake(build: Callable[[], Transport]) -> None:
    with pytest.raises(AssertionError, match="at least one frame"):
        build().sender("requests").send([])


def test_closing_loses_nothing_when_the_receiver_is_behind(build: Callable[[], Transport]) -> None:
    receiver, other = build().receiver("requests"), build()
    body = pattern(300_000)  # eight of them are more than the kernel holds
    begin = time.monotonic()
    sent = {name: [[name, b"%d" % number, body] for number in range(8)] for name in (b"a", b"b", b"c")}
    for messages in sent.values():
        sender = other.sender("requests")
        for message in messages:
            sender.send(message)
        sender.close()
    assert time.monotonic() - begin < 2
    got = [receiver.receive(SOON) or [] for _ in range(24)]
    assert {name: [message for message in got if message[:1] == [name]] for name in sent} == sent


def test_credit_is_renewed_for_every_sender(build: Callable[[], Transport]) -> None:
    receiver, senders = build().receiver("requests"), [build().sender("requests") for _ in range(3)]
    for number in range(40):
        for sender in senders:
            sender.send([b"%d" % number], SOON)
        if number % 8 == 7:
            got = [receiver.receive(SOON) for _ in range(24)]
            assert len([one for one in got if one == [b"%d" % number]]) == 3


def test_sending_to_nobody_ends_in_time(build: Callable[[], Transport]) -> None:
    sender = build().sender("requests")
    assert fill(sender, b"") == 8
    with pytest.raises(TransportTimeout, match="has not started"):
        sender.send([b"x"], 0)


def test_files_and_sockets_are_given_back(folder: Path, build: Callable[[], Transport]) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    build().close()
    files, threads = open_files(), threading.active_count()
    tasks = len(os.listdir("/proc/self/task"))
    for _ in range(3):
        transport = build()
        receiver, sender = transport.receiver("a"), transport.sender("a")
        sender.send([b"x"])
        assert receiver.receive(SOON) == [b"x"]
        transport.close()
    assert (open_files(), threading.active_count(), len(os.listdir("/proc/self/task"))) == (files, threads, tasks)
    assert list(folder.iterdir()) == []


def test_a_failed_bind_leaves_the_channel_free(folder: Path, build: Callable[[], Transport]) -> None:
    blocked = folder / "requests.sock"
    blocked.mkdir()
    with pytest.raises(TransportError, match="cannot bind"):
        build().receiver("requests")
    blocked.rmdir()
    receiver, sender = build().receiver("requests"), build().sender("requests")
    sender.send([b"x"])
    assert receiver.receive(SOON) == [b"x"]


def test_a_path_that_is_too_long_says_so(folder: Path) -> None:
    deep = folder / ("x" * 90)
    deep.mkdir(mode=0o700)
    transport = plugin.build(TransportBuild(deep, plugin.ZmqOptions()))
    for opening in (transport.receiver, transport.sender):
        with pytest.raises(TransportError, match=f"the system allows {zmq.IPC_PATH_MAX_LEN}") as caught:
            opening("requests-of-somebody")
        assert "TMPDIR" in caught.value.remedy
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize(("mode", "says"), [(0o755, "mode 755"), (0o710, "mode 710"), (None, "does not exist")])
def test_a_folder_that_is_not_private_is_refused(folder: Path, mode: int | None, says: str) -> None:
    inner = folder / "inner"
    if mode is not None:
        inner.mkdir()
        inner.chmod(mode)
    with pytest.raises(TransportError, match=says):
        plugin.build(TransportBuild(inner, plugin.ZmqOptions()))


def test_says_what_it_can() -> None:
    declared = plugin.capabilities(plugin.ZmqOptions())
    assert declared.processes
    assert not declared.fan_out
    assert not declared.hosts


@pytest.mark.parametrize("wrong", [{"bound": 0}, {"high_water": 9}])
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        plugin.ZmqOptions.model_validate(wrong)
