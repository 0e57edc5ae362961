"""The ZeroMQ transport: the contract, and what is special about processes, sockets and files."""

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
from importlib.metadata import entry_points
from pathlib import Path

import pluggy
import pytest
import zmq
from pydantic import ValidationError

import srtkit_plugin_transport_zmq as plugin
from plugins.transport_inproc.tests.transport_contract import SOON, Sides, TransportContract, fill, in_thread, pattern
from srtkit.spec import hookspecs
from srtkit.spec.errors import PeerGone, TransportError, TransportTimeout
from srtkit.spec.transport import Sender, Transport, TransportBuild
from srtkit.spec.versions import CONTRACTS


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


@pytest.fixture
def sides(folder: Path, build: Callable[[], Transport]) -> Iterator[Sides]:
    both = Sides(build(), build())
    yield both
    both.sending.close()
    both.receiving.close()
    assert list(folder.iterdir()) == []


class TestZmq(TransportContract):
    """Everything the contract promises, between two builds of one run."""


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


def test_a_killed_receiver_is_noticed_by_a_sender_that_waits(folder: Path, build: Callable[[], Transport]) -> None:
    sender = build().sender("requests")
    body = pattern(1 << 20)

    def send_until_it_fails() -> None:
        while True:
            sender.send([body], 30)

    with child(folder, HOLDS_A_RECEIVER) as process, in_thread(send_until_it_fails) as sending:
        time.sleep(0.3)
        assert not sending.done()
        process.send_signal(signal.SIGKILL)
        with pytest.raises(PeerGone):
            sending.result(SOON)


def test_a_receiver_that_ends_without_closing_is_noticed(folder: Path, build: Callable[[], Transport]) -> None:
    sender = build().sender("requests")
    with child(folder, 'receiver = transport.receiver("requests")\nprint("up", flush=True)\nreceiver.receive(9)'):
        sender.send([b"now end"])
        assert seconds_until_gone(sender) < SOON


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


ECHO = """
    receiver, sender = transport.receiver("requests"), transport.sender("replies")
    print("up", flush=True)
    while (message := receiver.receive(30)) != [b"end"]:
        sender.send(message)
    transport.close()
"""


def test_messages_go_to_another_process_and_back(folder: Path, build: Callable[[], Transport]) -> None:
    transport = build()
    receiver, sender = transport.receiver("replies"), transport.sender("requests")
    with child(folder, ECHO) as process:
        for size in (0, 1, 4095, 4096, 1 << 20, 16 << 20):
            message = [pattern(size), b"", pattern(100, size)]
            sender.send(message)
            assert receiver.receive(SOON) == message
        for number in range(200):
            sender.send([b"%d" % number])
            assert receiver.receive(SOON) == [b"%d" % number]
        sender.send([b"end"])
        assert process.wait(SOON) == 0
    transport.close()
    assert list(folder.iterdir()) == []


def test_a_sender_that_closes_and_ends_has_delivered(folder: Path, build: Callable[[], Transport]) -> None:
    receiver = build().receiver("requests")
    code = """
        sender = transport.sender("requests")
        print("up", flush=True)
        for number in range(30):
            sender.send([b"%d" % number, bytes(100_000)])
        sender.close()
        import os; os._exit(0)
    """
    with child(folder, code):
        for number in range(30):
            assert receiver.receive(SOON) == [b"%d" % number, bytes(100_000)]


def test_a_killed_sender_harms_nobody(folder: Path, build: Callable[[], Transport]) -> None:
    transport = build()
    receiver = transport.receiver("requests")
    code = """
        sender = transport.sender("requests")
        print("up", flush=True)
        while True:
            sender.send([b"mine", bytes(3_000_000)])
    """
    with child(folder, code) as process:
        assert receiver.receive(SOON) == [b"mine", bytes(3_000_000)]
        process.send_signal(signal.SIGKILL)
        process.wait(SOON)
        while (message := receiver.receive(0.3)) is not None:
            assert message == [b"mine", bytes(3_000_000)], "half a message"
        build().sender("requests").send([b"other"])
        assert receiver.receive(SOON) == [b"other"]


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


def test_closing_waits_a_second_at_most_for_a_receiver_that_never_came(build: Callable[[], Transport]) -> None:
    sender = build().sender("requests")
    sender.send([b"x"])
    begin = time.monotonic()
    sender.close()
    assert 0.8 <= time.monotonic() - begin <= 2


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


def test_the_hook_is_registered_and_found_by_name() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    (descriptor,) = manager.hook.srtkit_transport()
    assert descriptor.contract == CONTRACTS["transport"].version
    (point,) = entry_points(group=CONTRACTS["transport"].group, name="zmq")
    assert point.load() is plugin


def test_the_descriptor_is_light() -> None:
    code = (
        "import sys, srtkit_plugin_transport_zmq as p; p.srtkit_transport()\n"
        "assert not {'torch', 'zmq', 'srtkit_plugin_transport_zmq.transport'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
