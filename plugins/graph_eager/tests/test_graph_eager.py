"""The eager runner: order of calls, keys, and an import without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import cast

import pytest
import torch
from torch import Tensor

import srtkit_plugin_graph_eager as plugin
from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, Program
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import StepKey

LIMITS = Limits(max_rows=8, max_tokens=64, max_context=128, page_size=16)
KEY = StepKey(rows=2, tokens=5)


class Doubling(Program):
    """Writes its key's tokens on the host, doubles them in the body."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.buffer = torch.zeros(64)

    def before(self, key: StepKey) -> None:
        self.calls.append("before")
        self.buffer[: key.tokens] = torch.arange(key.tokens)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        self.calls.append("body")
        return {"out": self.buffer[: key.tokens] * 2}

    def cuts(self) -> frozenset[str]:
        return frozenset()


@pytest.fixture
def runner() -> GraphRunner:
    return plugin.build(GraphRunnerBuild(LIMITS, cast("Platform", None), 0, NoOptions()))


def test_run_is_before_then_body(runner: GraphRunner) -> None:
    program = Doubling()
    runner.prepare(program, ())
    first = runner.run(program, KEY)["out"]
    second = runner.run(program, StepKey(rows=1, tokens=3, q_len=3))["out"]
    assert program.calls == ["before", "body"] * 2
    assert first.tolist() == [0, 2, 4, 6, 8]
    assert second.tolist() == [0, 2, 4]


def test_outputs_of_a_run_survive_further_runs(runner: GraphRunner) -> None:
    program = Doubling()
    first = runner.run(program, KEY)["out"]
    for _ in range(3):
        runner.run(program, StepKey(rows=1, tokens=1))
    assert first.tolist() == [0, 2, 4, 6, 8]


def test_an_error_in_the_body_leaves_the_runner_usable(runner: GraphRunner) -> None:
    class Broken(Doubling):
        def body(self, key: StepKey) -> Mapping[str, Tensor]:
            raise RuntimeError("broken body")

    with pytest.raises(RuntimeError, match="broken body"):
        runner.run(Broken(), KEY)
    assert runner.run(Doubling(), KEY)["out"].shape == (5,)


def test_close_and_again(runner: GraphRunner) -> None:
    runner.close()
    runner.prepare(Doubling(), ())
    assert runner.run(Doubling(), KEY)["out"].shape == (5,)


def test_it_has_no_keys_fits_all_and_needs_no_memory() -> None:
    descriptor = plugin.srtkit_graph_runner()
    for level in ("never", "one_token", "uniform", "any"):
        assert descriptor.keys(LIMITS, level, NoOptions()) == ()
    assert descriptor.fit(KEY, ()) == KEY
    assert descriptor.memory((), 4096, 64) == 0
    can = descriptor.capabilities(DeviceFacts("cpu", "test", "x86_64"))
    assert can.levels == {"never"}
    assert can.gates


def test_keys_to_capture_are_refused(runner: GraphRunner) -> None:
    with pytest.raises(Unsupported, match="captures no graphs"):
        runner.prepare(Doubling(), [KEY])


def test_the_descriptor_imports_no_torch() -> None:
    code = "import sys, srtkit_plugin_graph_eager as p; p.srtkit_graph_runner(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
