"""The device objects: arenas, threads, streams, and the group of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import srtkit_plugin_platform_cpu as plugin
from srtkit.spec.errors import OutOfMemory, Unsupported
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit_plugin_platform_cpu.arenas import Arenas
from srtkit_plugin_platform_cpu.facts import cpu_facts

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.fixture
def platform() -> Iterator[Platform]:
    threads = torch.get_num_threads()
    built = plugin.build(PlatformBuild(cpu_facts(), plugin.Options(threads=threads)))
    yield built
    built.close()


def resident() -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


IN_HUGE_PAGES = """
def in_huge_pages(address):
    "Whether huge pages were asked for there: the flag hg of its mapping."
    inside = False
    for line in open("/proc/self/smaps"):
        if "-" in line.split()[0]:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            inside = begin <= address < end
        elif inside and line.startswith("VmFlags"):
            return "hg" in line.split()
"""


def in_child(code: str, **environment: str) -> str:
    """Run in a fresh process, whose threads are its own."""
    head = (
        "import os, threading, torch, srtkit_plugin_platform_cpu as p\n"
        "from srtkit.spec.platform import PlatformBuild\n"
        "def build(**o): return p.build(PlatformBuild(p.probe(p.Options())[0], p.Options(**o)))\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | environment
    command = [sys.executable, "-c", head + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32, torch.uint8, torch.float8_e4m3fn])
def test_allocate_gives_zeros_of_that_shape(platform: Platform, dtype: torch.dtype) -> None:
    block = platform.allocate("kv", (3, 5, 2, 8), dtype)
    assert block.shape == (3, 5, 2, 8)
    assert block.dtype is dtype
    assert block.is_contiguous()
    assert not block.view(torch.uint8).any()
    block.view(torch.uint8).fill_(1)


def test_an_empty_block(platform: Platform) -> None:
    assert platform.allocate("workspace", (0, 4), torch.int32).shape == (0, 4)


@linux
def test_memory_is_taken_at_first_touch_and_given_back(platform: Platform) -> None:
    before = resident()
    block = platform.allocate("kv", (64, MIB), torch.uint8)
    address = block.data_ptr()
    assert resident() - before < 16 * MIB
    block.fill_(1)
    assert resident() - before > 48 * MIB
    assert platform.release("kv")
    assert resident() - before < 16 * MIB
    platform.restore("kv")
    assert block.data_ptr() == address
    block.fill_(2)
    assert int(block[-1, -1]) == 2


@linux
def test_release_leaves_other_arenas_alone(platform: Platform) -> None:
    weights = platform.allocate("weights", (MIB,), torch.uint8)
    weights.fill_(7)
    platform.allocate("kv", (MIB,), torch.uint8)
    platform.release("kv")
    assert bool((weights == 7).all())


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="a kernel without huge pages")
def test_large_blocks_ask_for_huge_pages() -> None:
    code = (
        "kv, small = (build().allocate('kv', (n,), torch.uint8) for n in (8 << 20, 4096))\n"
        "print(in_huge_pages(kv.data_ptr()), in_huge_pages(small.data_ptr()))"
    )
    assert in_child(IN_HUGE_PAGES + code) == "True False"


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[madvise]" not in HUGE_PAGES.read_text(), reason="glibc asks for them with madvise only"
)
def test_so_do_weights_in_the_environment_of_a_rank() -> None:
    code = "weight = torch.ones(32 << 20, dtype=torch.uint8); print(in_huge_pages(weight.data_ptr() + (4 << 20)))"
    environment = plugin.defaults(cpu_facts()).environment
    assert in_child(IN_HUGE_PAGES + code, **environment) == "True"
    assert in_child(IN_HUGE_PAGES + code, GLIBC_TUNABLES="") == "False"


def test_a_block_ends_with_its_last_tensor() -> None:
    arenas = Arenas("platform:cpu", lambda: 8 * MIB)
    block = arenas.allocate("kv", (4, MIB), torch.uint8)
    row = block[2]
    del block
    assert arenas.reserved() == {"kv": 4 * MIB}
    assert int(row.fill_(3).sum()) == 3 * MIB
    del row
    assert arenas.reserved() == {"kv": 0}


def test_out_of_memory_states_the_figures() -> None:
    arenas = Arenas("platform:cpu", lambda: 3 * MIB)
    weights = arenas.allocate("weights", (MIB,), torch.float16)
    with pytest.raises(OutOfMemory, match=r"kv wants 2,097,152 B, 2,097,152 B are reserved, and 3,145,728 B are avail"):
        arenas.allocate("kv", (2 * MIB,), torch.uint8)
    assert arenas.reserved() == {"weights": 2 * MIB}
    arenas.release("weights")
    assert arenas.allocate("kv", (2 * MIB,), torch.uint8).shape == (2 * MIB,)
    assert weights.shape == (MIB,)


def test_the_real_machine_runs_out_too(platform: Platform) -> None:
    with pytest.raises(OutOfMemory):
        platform.allocate("kv", (1 << 50,), torch.uint8)
    assert platform.allocate("kv", (8,), torch.uint8).shape == (8,)


def test_memory_figures(platform: Platform) -> None:
    figures = platform.memory(0)
    assert 0 < figures.free <= figures.total
    assert 0 < figures.peak <= figures.total


@linux
def test_threads_are_set_for_the_caller_and_later_threads_and_then_cannot_be_pinned() -> None:
    code = (
        "from srtkit_plugin_platform_cpu.facts import usable_cpus\n"
        "build(); print(torch.get_num_threads() == len(usable_cpus()))\n"
        "build(threads=3); seen = [torch.get_num_threads()]\n"
        "t = threading.Thread(target=lambda: seen.append(torch.get_num_threads())); t.start(); t.join()\n"
        "print(seen); torch.zeros(1 << 20).add_(1)\n"
        "try: build(threads=3, pin=True)\n"
        "except Exception as e: print(type(e).__name__, e.cause)"
    )
    assert in_child(code).splitlines() == [
        "True",
        "[3, 3]",
        "Unsupported cannot pin: 0 of 2 threads were started by this call, the others before",
    ]


def test_threads_are_no_more_than_openmp_was_told_unless_the_file_says_so() -> None:
    code = "build(); told = torch.get_num_threads(); build(threads=2); print(told, torch.get_num_threads())"
    assert in_child(code, OMP_NUM_THREADS="1") == "1 2"


@linux
def test_pinned_threads_stand_on_cores_of_their_own() -> None:
    code = (
        "n = len(os.sched_getaffinity(0)); build(pin=True)\n"
        "cpus = [os.sched_getaffinity(int(t)) for t in os.listdir('/proc/self/task')]\n"
        "alone = [c for c in cpus if len(c) == 1]\n"
        "print(n == 1 or (len(alone) == torch.get_num_threads() == len(set.union(*alone))))"
    )
    assert in_child(code) == "True"


def test_streams_and_events_are_passed(platform: Platform) -> None:
    event = platform.new_event()
    with platform.new_stream() as stream:
        event.record()
        stream.synchronize()
    event.wait()
    event.synchronize(timeout=0.0)
    assert event.query()
    platform.current_stream().synchronize()
    assert platform.graphs() is None
    assert platform.device(0) == torch.device("cpu")
    assert platform.host_buffer((2, 3), torch.int32).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_group_of_one(platform: Platform) -> None:
    group = platform.communicator((0,), 0)
    x, out = torch.arange(3.0), torch.empty(3)
    group.all_reduce(x)
    group.broadcast(x, 0)
    group.all_gather(out, x)
    group.barrier(timeout=0.0)
    assert out.tolist() == [0, 1, 2]
    with pytest.raises(Unsupported):
        group.send(x, 1)
    with pytest.raises(Unsupported):
        group.recv(x, 1)
    group.abort()


def test_larger_groups_are_refused(platform: Platform) -> None:
    with pytest.raises(Unsupported, match="a group of 2 ranks"):
        platform.communicator((0, 1), 0)
