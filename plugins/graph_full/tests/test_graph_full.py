"""The runner over the fake device: what is captured, how outputs live, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

import srtkit_plugin_graph_full as plugin
import srtkit_plugin_platform_fakedev as fakedev
from srtkit.spec.errors import OutOfMemory, Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, Program
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit.spec.step_plan import StepKey

LIMITS = Limits(max_rows=6, max_tokens=40, max_context=64, page_size=16, depth=1)
KEYS = (StepKey(2, 2, 1), StepKey(4, 4, 1))


class Doubling(Program):
    """Doubles `value`, which is uploaded before each run; fails at the key `breaks`, reads the host at `reads`."""

    def __init__(self, platform: Platform, breaks: StepKey | None = None, reads: StepKey | None = None) -> None:
        self.value = 0.0
        self.captured: list[StepKey] = []
        self._breaks, self._reads = breaks, reads
        self._x = platform.allocate("workspace", (64,), torch.float32)

    def before(self, key: StepKey) -> None:
        self._x.fill_(self.value)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        self.captured.append(key)
        out = self._x[: key.tokens] * 2
        if key == self._breaks:
            raise KeyError("no such layer")
        if key == self._reads:
            out = out + out.sum().item()
        return {"out": out}

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


def test_it_captures_largest_first_and_replays(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform)
    runner.prepare(program, KEYS)
    assert program.captured == [KEYS[1], KEYS[1], KEYS[0], KEYS[0]], "each is run once before it is captured"
    for value in (1.0, 3.0):
        program.value = value
        assert runner.run(program, KEYS[0])["out"].tolist() == [2 * value] * 2
    assert len(program.captured) == 4


def test_outputs_outlive_depth_further_runs(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform)
    runner.prepare(program, KEYS)
    outputs = []
    for value in (1.0, 2.0, 3.0):
        program.value = value
        outputs.append(runner.run(program, KEYS[0])["out"])
    assert outputs[1].tolist() == [4, 4]
    assert outputs[2].tolist() == [6, 6]


def test_what_was_not_captured_is_refused(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform)
    runner.prepare(program, KEYS)
    with pytest.raises(Unsupported, match=r"rows=3.* was not captured"):
        runner.run(program, StepKey(3, 3, 1))
    with pytest.raises(Unsupported):
        runner.run(Doubling(platform), KEYS[0])
    runner.close()
    with pytest.raises(Unsupported):
        runner.run(program, KEYS[0])
    runner.prepare(program, KEYS)
    assert runner.run(program, KEYS[0])["out"].tolist() == [0, 0]


@pytest.mark.parametrize(("fault", "cause"), [("breaks", "no such layer"), ("reads", "reading a number")])
def test_a_body_that_cannot_be_captured(platform: Platform, runner: GraphRunner, fault: str, cause: str) -> None:
    key = KEYS[0]
    program = Doubling(platform, **{fault: key})
    free = platform.memory(0).free
    with pytest.raises(Unsupported, match=rf"cannot capture StepKey\(rows=2, .*{cause}"):
        runner.prepare(program, KEYS)
    assert platform.memory(0).free == free
    with pytest.raises(Unsupported):
        runner.run(program, KEYS[1])


def test_a_capture_without_memory_frees_what_it_took(platform: Platform, runner: GraphRunner) -> None:
    program = Doubling(platform)
    free = platform.memory(0).free
    kept = platform.allocate("kv", (free - 60,), torch.uint8)
    with pytest.raises(OutOfMemory, match=r"cannot capture StepKey\(rows=2"):
        runner.prepare(program, KEYS)
    assert platform.memory(0).free == 60
    del kept
    runner.prepare(program, KEYS)
    runner.close()
    assert platform.memory(0).free == free


def test_keys_by_level() -> None:
    decode = [StepKey(rows, rows, 1) for rows in (1, 2, 4, 6)]
    assert plugin.keys(LIMITS, "never", plugin.Options()) == ()
    assert plugin.keys(LIMITS, "one_token", plugin.Options()) == decode
    mixed = [StepKey(6, tokens) for tokens in (6, 12, 24, 40)]
    assert plugin.keys(LIMITS, "any", plugin.Options()) == decode + mixed
    assert plugin.keys(LIMITS, "any", plugin.Options(max_tokens=2)) == [*decode[:2], StepKey(2, 2)]


@pytest.mark.parametrize(
    ("wanted", "key"),
    [
        (StepKey(3, 3, 1), StepKey(4, 4, 1)),
        (StepKey(7, 7, 1), None),
        (StepKey(2, 9), StepKey(6, 24)),
        (StepKey(6, 12), StepKey(6, 12)),
        (StepKey(6, 13), None),
        (StepKey(1, 1, 1, flags=1), None),
    ],
)
def test_the_smallest_key_with_room(wanted: StepKey, key: StepKey | None) -> None:
    assert plugin.fit(wanted, plugin.keys(LIMITS, "any", plugin.Options())) == key


def test_without_graphs_there_is_no_runner(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin.capabilities(DeviceFacts("cpu", "test", "x86_64")).levels == {"never"}
    assert plugin.capabilities(DeviceFacts("gpu", "test", "g1", graphs=True)).levels == {"one_token", "uniform", "any"}
    monkeypatch.setattr(type(platform), "graphs", lambda self: None)
    with pytest.raises(Unsupported, match="captures no graphs"):
        plugin.build(GraphRunnerBuild(LIMITS, platform, 0, plugin.Options()))


def test_the_descriptor_imports_no_torch() -> None:
    code = "import sys, srtkit_plugin_graph_full as p; p.srtkit_graph_runner(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
