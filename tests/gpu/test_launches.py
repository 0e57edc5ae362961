"""What a step launches on an NVIDIA GPU, as torch's profiler sees it."""

import bisect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.gpu import serve
from bench.gpu.engine import Bare
from srtkit.engine.runner import ModelRunner
from srtkit_plugin_graph_cuda.runner import CapturingRunner

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here"),
]

LAYERS, MOST_EAGER = 4, 6
SMALL = serve.QWEN3_06B | {"num_hidden_layers": LAYERS, "vocab_size": 16384, "eos_token_id": 0}
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync")
ATTENTION = ("attend_kernel", "merge_kernel", "store_kernel", "prefix_kernel", "join_kernel")


@dataclass
class Launched:
    """By one call: graphs, and the names of kernels and copies that were launched by themselves."""

    graphs: int = 0
    eager: list[str] = field(default_factory=list)


@pytest.fixture(params=["cuda-full", "cuda-piecewise"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bare]:
    monkeypatch.setitem(serve.SHAPES, "small", SMALL)
    sets: dict[str, object] = {"scheduler__max_running": 16, "memory__kv_gib": 2}
    with serve.made_up(tmp_path, "small", [request.param, "eager"], **sets) as one:
        yield one


def launched(work: Callable[[], object], trace: Path, owner: type, method: str) -> list[Launched]:
    """What each call of the method launched while `work` was done."""
    call = getattr(owner, method)

    def marked(*args: Any, **named: Any) -> Any:
        with record_function("watched"):
            return call(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, marked)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
            work()
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(trace))
    events = [one for one in json.loads(trace.read_text())["traceEvents"] if "dur" in one]
    names = {
        one["args"]["correlation"]: one["name"]
        for one in events
        if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    }
    calls = sorted(
        (one["ts"], one["ts"] + one["dur"])
        for one in events
        if one["name"] == "watched" and one.get("cat") == "user_annotation"
    )
    found = [Launched() for _ in calls]
    for one in events:
        if one.get("cat") not in ("cuda_runtime", "cuda_driver"):
            continue
        at = bisect.bisect_right(calls, (one["ts"], float("inf"))) - 1
        if at < 0 or one["ts"] > calls[at][1]:
            continue
        if one["name"].startswith("cudaGraphLaunch"):
            found[at].graphs += 1
        elif one["name"].startswith(LAUNCHES):
            found[at].eager.append(names.get(one["args"]["correlation"], one["name"]))
    return found


@pytest.mark.parametrize("engine", ["cuda-full"], indirect=True)
def test_a_decode_step_is_one_graph_and_few_launches_beside_it(engine: Bare, tmp_path: Path) -> None:
    engine.seconds(serve.fixed(16, 60, 80, 1))
    steps = launched(
        lambda: engine.seconds(serve.fixed(16, 60, 80, 2)), tmp_path / "trace.json", ModelRunner, "forward"
    )
    decode = steps[2:-2]
    assert len(decode) > 70
    assert {step.graphs for step in decode} == {1}
    worst = max(decode, key=lambda step: len(step.eager))
    assert len(worst.eager) <= MOST_EAGER, worst.eager
    assert engine.built.runner.eager_steps == 0


@pytest.mark.parametrize("engine", ["cuda-piecewise"], indirect=True)
def test_a_prompt_in_pieces_launches_attention_alone_by_itself(engine: Bare, tmp_path: Path) -> None:
    buckets = sorted(key.tokens for key in engine.built.runner._runners if not key.q_len)
    assert len(buckets) > 10
    for tokens in buckets:
        (step,) = launched(
            lambda n=tokens: engine.seconds(serve.fixed(1, n, 1, n)),  # type: ignore[misc]
            tmp_path / "trace.json",
            CapturingRunner,
            "run",
        )
        assert step.graphs == LAYERS + 1, tokens
        others = [name for name in step.eager if not any(own in name for own in ATTENTION) and "Memcpy" not in name]
        assert not others, (tokens, others)
    assert engine.built.runner.eager_steps == 0
