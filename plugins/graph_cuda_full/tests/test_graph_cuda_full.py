"""Buckets; the runner on the fake device, which finds what a captured region may not do; the contract on a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

import srtkit_plugin_graph_cuda_full as plugin
import srtkit_plugin_platform_fakedev as fakedev
from srtkit.spec.errors import OutOfMemory, Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, Program
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit.spec.step_plan import StepKey

LIMITS = Limits(max_rows=6, max_tokens=40, max_context=64, page_size=16, depth=1)
KEYS = [StepKey(2, 2, 1), StepKey(4, 4, 1)]


class Doubling(Program):
    """Uploads a value and doubles it; `breaks` is the key whose body fails."""

    def __init__(self, platform: Platform, breaks: StepKey | None = None) -> None:
        self.value = 0.0
        self.bodies: list[StepKey] = []
        self._breaks = breaks
        self._x = platform.allocate("workspace", (64,), torch.float32)

    def before(self, key: StepKey) -> None:
        self._x.fill_(self.value)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        self.bodies.append(key)
        if key == self._breaks:
            raise KeyError("no such layer")
        return {"out": self._x[: key.tokens] * 2}

    def cuts(self) -> frozenset[str]:
        return frozenset()


@pytest.fixture
def platform() -> Iterator[Platform]:
    options = fakedev.Options(memory_mib=1)
    built = fakedev.build(PlatformBuild(fakedev.probe(options)[0], options))
    yield built
    built.close()


@pytest.fixture
def runner(platform: Platform) -> GraphRunner:
    return plugin.build(GraphRunnerBuild(LIMITS, platform, 0, plugin.Options()))


def test_largest_first_each_warmed_up_and_captured_in_turns(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform)
    runner.prepare(program, KEYS)
    assert program.bodies == [KEYS[1]] * 3 + [KEYS[0]] * 3  # depth 1: two turns


def test_outputs_outlive_depth_further_runs_and_no_body_runs_again(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform)
    runner.prepare(program, KEYS)
    bodies, outputs = len(program.bodies), []
    for value in (1.0, 2.0, 3.0):
        program.value = value
        outputs.append(runner.run(program, KEYS[0])["out"])
    assert outputs[1].tolist() == [4, 4]
    assert outputs[2].tolist() == [6, 6]
    assert len(program.bodies) == bodies


def test_a_run_of_another_key_leaves_outputs_alone(platform: Platform, runner: GraphRunner) -> None:
    """All keys copy to the same sets, so they take turns together."""
    program = Doubling(platform)
    runner.prepare(program, KEYS)
    outputs = []
    for value, key in ((1.0, KEYS[1]), (2.0, KEYS[0]), (3.0, KEYS[1])):
        program.value = value
        outputs.append(runner.run(program, key)["out"])
        if len(outputs) > 1:
            assert outputs[-2].tolist() == [2 * (value - 1)] * len(outputs[-2])


def test_what_was_not_captured_is_refused(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform)
    runner.prepare(program, KEYS)
    with pytest.raises(Unsupported, match=r"rows=3.* was not captured"):
        runner.run(program, StepKey(3, 3, 1))
    runner.close()
    with pytest.raises(Unsupported):
        runner.run(program, KEYS[0])
    runner.prepare(program, KEYS)
    assert runner.run(program, KEYS[0])["out"].tolist() == [0, 0]


def test_a_body_that_fails_names_the_key_and_frees_the_rest(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform, breaks=KEYS[0])
    free = platform.memory(0).free
    with pytest.raises(Unsupported, match=r"cannot capture StepKey\(rows=2, .*no such layer"):
        runner.prepare(program, KEYS)
    assert platform.memory(0).free == free


def test_a_capture_without_memory_says_so(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform)
    kept = platform.allocate("kv", (platform.memory(0).free - 40,), torch.uint8)
    with pytest.raises(OutOfMemory, match=r"cannot capture StepKey\(rows=4.*"):
        runner.prepare(program, KEYS)
    assert platform.memory(0).free == 40
    del kept
    runner.prepare(program, KEYS)


def test_buckets() -> None:
    limits = Limits(max_rows=300, max_tokens=8192, max_context=64, page_size=16)
    rows = [key.rows for key in plugin.keys(limits, "uniform", plugin.Options())]
    assert rows == [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16)]
    assert [key.rows for key in plugin.keys(limits, "any", plugin.Options(max_rows=11))] == [1, 2, 4, 8, 11]
    assert plugin.keys(limits, "never", plugin.Options()) == ()
    keys = plugin.keys(limits, "uniform", plugin.Options())
    assert plugin.memory(keys, 10) == 3 * 10 * 256


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [(StepKey(3, 3, 1), 4), (StepKey(4, 4, 1), 4), (StepKey(7, 7, 1), None), (StepKey(2, 9), None)],
)
def test_the_smallest_bucket_with_room(wanted: StepKey, rows: int | None) -> None:
    found = plugin.fit(wanted, plugin.keys(LIMITS, "uniform", plugin.Options()))
    assert (found and found.rows) == rows


def test_it_offers_nothing_elsewhere() -> None:
    assert plugin.capabilities(DeviceFacts("cpu", "test", "x86_64")).levels == {"never"}
    assert plugin.capabilities(DeviceFacts("cuda", "test", "sm90", graphs=True)).levels == {"one_token", "uniform"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
def test_it_keeps_the_contract() -> None:
    command = ["conformance", "run", "graph_runner:cuda-full", "--device", "cuda", "--level", "2"]
    done = subprocess.run([sys.executable, "-m", "srtkit", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_descriptor_imports_no_torch() -> None:
    code = "import sys, srtkit_plugin_graph_cuda_full as p; p.srtkit_graph_runner(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
