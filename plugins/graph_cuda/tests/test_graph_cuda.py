"""Buckets; the runners on the fake device, which finds what a captured region may not do; the contract on a GPU."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest
import torch
from torch import Tensor

import srtkit_plugin_platform_fakedev as fakedev
from srtkit.spec.errors import OutOfMemory, Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild, Program
from srtkit.spec.platform import GraphHandle, GraphPrimitives, Platform, PlatformBuild
from srtkit.spec.step_plan import StepKey
from srtkit_plugin_graph_cuda import breakable, full, piecewise, steps

LIMITS = Limits(max_rows=6, max_tokens=40, max_context=64, page_size=16, depth=1)
KEYS = [StepKey(2, 2, 1), StepKey(4, 4, 1)]
KINDS: dict[str, ModuleType] = {"full": full, "piecewise": piecewise, "breakable": breakable}

_library = torch.library.Library("graph_cuda_tests", "DEF")  # type: ignore[no-untyped-call]
_library.define("cut(Tensor x, Tensor(a!) out) -> ()")  # type: ignore[no-untyped-call]
_library.define("named(Tensor x, *, Tensor(a!) out) -> ()")  # type: ignore[no-untyped-call]


def _copy(x: Tensor, out: Tensor) -> None:
    out.copy_(x)


for _name in ("cut", "named"):
    _library.impl(_name, _copy, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


class Doubling(Program):
    """Uploads a value and doubles it, `cut` once more for each of `cuts`; `breaks` is the key whose body fails.

    What is called outside a graph is multiplied by `decision`.
    """

    def __init__(self, platform: Platform, breaks: StepKey | None = None, n_cuts: int = 0) -> None:
        self.value, self.decision = 0.0, 1.0
        self.bodies: list[StepKey] = []
        self.called: list[tuple[StepKey, str]] = []
        self._breaks, self._cuts = breaks, n_cuts
        self._x = platform.allocate("workspace", (64,), torch.float32)

    def before(self, key: StepKey) -> None:
        self._x.fill_(self.value)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        self.bodies.append(key)
        x = self._x[: key.tokens]
        for _ in range(self._cuts):
            out = torch.empty_like(x)
            torch.ops.graph_cuda_tests.cut(x * 2, out)
            x = out
        if key == self._breaks:
            raise KeyError("no such layer")
        return {"out": x * 2}

    def cuts(self) -> frozenset[str]:
        return frozenset({"graph_cuda_tests::cut", "graph_cuda_tests::named"})

    def outside(self, key: StepKey, operator: object, args: object) -> None:
        self.called.append((key, str(operator)))
        x, out = args  # type: ignore[misc]
        out.copy_(x * self.decision)


class Gated(Doubling):
    """Its cuts are gates."""

    def cuts(self) -> frozenset[str]:
        return frozenset()

    def gates(self) -> frozenset[str]:
        return super().cuts()


@pytest.fixture
def platform() -> Iterator[Platform]:
    options = fakedev.Options(memory_mib=1)
    built = fakedev.build(PlatformBuild(fakedev.probe(options)[0], options))
    yield built
    built.close()


@pytest.fixture(params=["fakedev", "cuda"])
def device(request: pytest.FixtureRequest, platform: Platform) -> Iterator[Platform]:
    """The fake device, and the GPU where there is one."""
    if request.param == "fakedev":
        yield platform
        return
    if not torch.cuda.is_available():
        pytest.skip("there is no NVIDIA GPU here")
    cuda = pytest.importorskip("srtkit_plugin_platform_cuda")
    built = cuda.build(PlatformBuild(cuda.probe(cuda.Options())[0], cuda.Options()))
    yield built
    built.close()


def runner_of(kind: str, platform: Platform) -> GraphRunner:
    built: GraphRunner = KINDS[kind].build(GraphRunnerBuild(LIMITS, platform, 0, steps.Options()))
    return built


@pytest.fixture(params=KINDS)
def runner(request: pytest.FixtureRequest, platform: Platform) -> GraphRunner:
    return runner_of(request.param, platform)


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


class Counting(GraphPrimitives):
    """Counts graphs that were recorded, and what of them is launched."""

    def __init__(self, inner: GraphPrimitives) -> None:
        self.inner, self.ended, self.replays = inner, 0, 0

    def new_pool(self) -> object:
        return self.inner.new_pool()

    def begin(self, pool: object) -> None:
        self.inner.begin(pool)

    def abandon(self) -> None:
        self.inner.abandon()

    def end(self) -> GraphHandle:
        self.ended += 1
        return CountingHandle(self, self.inner.end())


class CountingHandle(GraphHandle):
    """Tells `Counting`."""

    def __init__(self, owner: Counting, inner: GraphHandle) -> None:
        self.owner, self.inner = owner, inner

    def replay(self) -> None:
        self.owner.replays += 1
        self.inner.replay()

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize(("kind", "graphs"), [("full", 1), ("piecewise", 4), ("breakable", 1)])
def test_a_step_has_one_graph_more_than_cuts(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, kind: str, graphs: int
) -> None:
    primitives = platform.graphs()
    assert primitives is not None
    counting = Counting(primitives)
    monkeypatch.setattr(type(platform), "graphs", lambda self: counting)
    runner, program = runner_of(kind, platform), Doubling(platform, n_cuts=3)
    runner.prepare(program, KEYS[:1])
    assert counting.ended == 2 * graphs, "once for each turn"
    program.value, program.called = 1.5, []
    assert runner.run(program, KEYS[0])["out"].tolist() == [24, 24]
    assert counting.replays == graphs
    assert program.called == [(KEYS[0], "graph_cuda_tests.cut.default")] * (graphs - 1)


@pytest.mark.parametrize("kind", ["piecewise", "breakable"])
def test_what_the_host_decides_at_a_gate_changes_the_result(device: Platform, kind: str) -> None:
    runner, program = runner_of(kind, device), Gated(device, n_cuts=2)
    runner.prepare(program, KEYS)
    program.value = 1.0
    for program.decision in (1.0, -3.0, 0.5):
        assert runner.run(program, KEYS[0])["out"].tolist() == [8 * program.decision**2] * 2


def test_one_graph_has_no_gates(platform: Platform) -> None:
    with pytest.raises(Unsupported, match=r'waits at graph_cuda_tests::cut.* is no single graph\n.*"cuda-breakable"'):
        runner_of("full", platform).prepare(Gated(platform), KEYS)


def test_a_mark_of_another_form_is_refused(platform: Platform) -> None:
    class Named(Doubling):
        def body(self, key: StepKey) -> Mapping[str, Tensor]:
            out = torch.empty_like(self._x)
            torch.ops.graph_cuda_tests.named(self._x, out=out)
            return {"out": out}

    with pytest.raises(Unsupported, match=r"cannot capture StepKey.* called with names of arguments"):
        runner_of("piecewise", platform).prepare(Named(platform), KEYS)


def test_a_cut_step_has_the_memory_of_its_calls_back_when_it_is_closed(platform: Platform) -> None:
    runner, program = runner_of("piecewise", platform), Doubling(platform, n_cuts=2)
    free = platform.memory(0).free
    runner.prepare(program, KEYS)
    runner.run(program, KEYS[1])
    platform.current_stream().synchronize()
    runner.close()
    gc.collect()
    assert platform.memory(0).free == free


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


@pytest.mark.parametrize("n_cuts", [0, 2])
def test_a_body_that_fails_names_the_key_and_frees_the_rest(
    platform: Platform, runner: GraphRunner, n_cuts: int
) -> None:
    program = Doubling(platform, breaks=KEYS[0], n_cuts=n_cuts)
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
    limits = Limits(max_rows=300, max_tokens=2048, max_context=64, page_size=16)
    decode = steps.keys(limits, "uniform", steps.Options())
    assert [key.rows for key in decode] == [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16)]
    mixed = [key for key in steps.keys(limits, "any", steps.Options(max_rows=11)) if not key.q_len]
    assert {key.rows for key in mixed} == {12}, "a row for padding"
    octaves = [*range(64, 513, 64), *range(640, 1025, 128), *range(1280, 2049, 256)]
    assert [key.tokens for key in mixed] == octaves
    assert steps.keys(limits, "any", steps.Options(max_tokens=0)) == decode
    assert steps.keys(limits, "never", steps.Options()) == ()
    assert steps.memory(decode, 10, 1) == 3 * 10 * 256 + 256


@pytest.mark.parametrize(
    ("wanted", "key"),
    [
        (StepKey(3, 3, 1), StepKey(4, 4, 1)),
        (StepKey(4, 4, 1), StepKey(4, 4, 1)),
        (StepKey(7, 7, 1), None),
        (StepKey(2, 9), StepKey(7, 40)),
        (StepKey(6, 40), StepKey(7, 40)),
        (StepKey(1, 1, 1, flags=1), None),
    ],
)
def test_the_smallest_bucket_with_room(wanted: StepKey, key: StepKey | None) -> None:
    assert steps.fit(wanted, steps.keys(LIMITS, "any", steps.Options())) == key


def test_tokens_that_are_over_need_a_row_for_them() -> None:
    keys = [StepKey(4, 8), StepKey(4, 16), StepKey(5, 24)]
    assert steps.fit(StepKey(4, 8), keys) == StepKey(4, 8)
    assert steps.fit(StepKey(4, 7), keys) == StepKey(5, 24)
    assert steps.fit(StepKey(3, 7), keys) == StepKey(4, 8)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_without_graphs_there_is_no_runner(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, kind: ModuleType
) -> None:
    assert kind.capabilities(DeviceFacts("cpu", "test", "x86_64")).levels == {"never"}
    assert "any" in kind.capabilities(DeviceFacts("cuda", "test", "sm90", graphs=True)).levels
    monkeypatch.setattr(type(platform), "graphs", lambda self: None)
    with pytest.raises(Unsupported, match="captures no graphs"):
        kind.build(GraphRunnerBuild(LIMITS, platform, 0, steps.Options()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
@pytest.mark.parametrize("name", ["cuda-full", "cuda-piecewise", "cuda-breakable"])
def test_it_keeps_the_contract(name: str) -> None:
    command = ["conformance", "run", f"graph_runner:{name}", "--device", "cuda", "--level", "2"]
    done = subprocess.run([sys.executable, "-m", "srtkit", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_descriptors_import_no_torch() -> None:
    code = "import sys; from srtkit_plugin_graph_cuda import breakable, full, piecewise; "
    code += "[one.srtkit_graph_runner() for one in (breakable, full, piecewise)]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
