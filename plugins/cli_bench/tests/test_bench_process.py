"""Memory and CPU time of real process trees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from srtkit_plugin_cli_bench import process

MIB = 2**20
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.readline()
child.stdin.close()
child.wait()
"""
CHILD = "import sys; block = bytearray(b'x') * (64 << 20); print(flush=True); sys.stdin.readline()"


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process and its child, which holds 64 MiB."""
    code = PARENT.replace("CHILD", repr(CHILD))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        yield parent.pid, int(parent.stdout.readline())
        parent.communicate(b"\n", timeout=10)


def test_tree_is_the_process_and_its_descendants(family: tuple[int, int]) -> None:
    assert process.tree(family[0]) == list(family)
    assert process.tree(family[1]) == [family[1]]
    assert set(family) < set(process.tree(os.getpid()))


def test_memory_of_a_child_counts(family: tuple[int, int]) -> None:
    parent, child = family
    assert 64 * MIB < process.pss_bytes(child) < 128 * MIB
    assert process.pss_bytes(parent) > process.pss_bytes(child)
    assert process.peak_rss_bytes(parent) > 64 * MIB


def test_a_process_that_is_gone_or_not_yet_reaped_has_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in the table
    assert process.tree(child.pid) == []
    child.wait()
    assert process.tree(child.pid) == []
    assert process.pss_bytes(child.pid) == 0
    assert process.cpu_seconds(child.pid) == 0


def test_cpu_seconds_are_shared_out() -> None:
    before = process.CpuReading(measured=1.0, client=10.0, busy=100.0)
    after = process.CpuReading(measured=3.0, client=10.5, busy=103.0)
    assert after.since(before) == {"server": 2.0, "load_generator": 0.5, "other": 0.5}


def test_cpu_seconds_of_work_done_here() -> None:
    start = process.CpuReading.take(os.getpid())
    while process.cpu_seconds(os.getpid()) < start.measured + 0.05:
        sum(range(10_000))
    end = process.CpuReading.take(os.getpid())
    assert end.client - start.client >= 0.04
    assert end.busy - start.busy >= 0.04


def test_peak_outlives_what_caused_it(family: tuple[int, int]) -> None:
    with process.PeakPss(family[1], interval=60.0) as peak:
        pass
    assert peak.bytes > 64 * MIB
