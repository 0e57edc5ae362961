"""`srt bench` as core uses it: hook, arguments, whole runs against a loopback server and an engine double."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy
import pytest

import srtkit_plugin_cli_bench as plugin
from srtkit.spec import hookspecs
from srtkit.spec.errors import ConfigError
from srtkit_plugin_cli_bench import offline
from srtkit_plugin_cli_bench.load import Plan, run_workload
from srtkit_plugin_cli_bench.workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from conftest import StubServer

QUICK = ("--repeats", "1", "--warmup", "0")


@pytest.fixture(autouse=True)
def keep_signals() -> Iterator[None]:
    """`srt bench serve` turns SIGTERM into an orderly end; pytest wants its own handler back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def parse(*argv: str) -> tuple[argparse.Namespace, Any]:
    manager = pluggy.PluginManager("srtkit")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    (command,) = manager.hook.srtkit_cli()
    assert command.name == "bench"
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return parser.parse_args(argv), command


def run(*argv: str) -> int:
    args, command = parse(*argv)
    return int(command.run(args))


def test_serve_measures_and_reports(stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stub.info = {"memory": {"kv_bytes": 1 << 20}, "versions": {"srtkit-core": "0.1.0"}}
    file = tmp_path / "out.json"
    argv = ("--url", stub.url, "--workload", "W1", "W3", "--pid", str(os.getpid()), "--json", str(file))
    assert run("serve", *argv, "--repeats", "3") == 0
    result = json.loads(file.read_text())
    assert list(result["workloads"]) == ["W1", "W3"]
    w3 = result["workloads"]["W3"]
    assert (w3["summary"]["output_tokens"]["median"], w3["summary"]["prompt_tokens"]["median"]) == (1024, 32 * 1056)
    assert w3["definition"] == {
        "name": "W3", "requests": 32, "prefix": 1024, "prompt": 32, "output": 32, "rate": None, "warm_prefix": False
    }  # fmt: skip
    assert len(w3["repeats"]) == 3
    assert w3["errors"] == w3["notes"] == []
    assert w3["cpu_s"].keys() == {"server", "load_generator", "other"}
    memory = result["memory"]
    assert memory["pss_peak_without_kv_bytes"] == memory["pss_peak_bytes"] - (1 << 20)
    assert result["facts"]["cores"] == os.cpu_count()
    assert result["facts"]["versions"].keys() >= {"numpy", "httptools"}
    assert result["server_info"] == stub.info
    # 1 warm-up and 3 repeats of W1, 8 warm-up requests and 3 repeats of W3
    assert len(stub.bodies) == 1 + 3 + 8 + 3 * 32
    shown = capsys.readouterr().out
    assert "median [low, high]" in " ".join(shown.split())
    assert "TTFT p99, ms" in shown
    assert "PSS peak without KV" in shown


def test_figures_that_need_a_warning_get_one(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    stub.missing_tokens, stub.cached = 200, 120
    assert run("serve", "--url", stub.url, "--workload", "W1", *QUICK) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "fewer than 3 repeats" in shown
    assert "does not honour ignore_eos" in shown
    assert "more prompt tokens came from the cache" in shown


def test_failed_requests_end_with_1_and_their_reason(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    stub.status = 503
    assert run("serve", "--url", stub.url, "--workload", "W1", *QUICK) == 1
    assert "queue full" in capsys.readouterr().out


def test_the_key_goes_with_every_request_and_into_no_file(
    stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.api_key, stub.info, file = "s'écret", {}, tmp_path / "out.json"
    argv = ["serve", "--url", stub.url, "--api-key", "s'écret", "--workload", "W1", "--flush-cache"]
    argv += ["--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["srt", "bench", *argv])
    assert run(*argv, *QUICK) == 0
    result = json.loads(file.read_text())
    assert (result["workloads"]["W1"]["errors"], result["server_info"]) == ([], {})
    assert "--api-key '***' --workload W1" in result["facts"]["command"]
    assert "cret" not in file.read_text()


@pytest.mark.parametrize("more", [(), ("--model", "tiny")])
@pytest.mark.parametrize(
    ("given", "cause"), [((), "wants an API key"), (("--api-key", "wrong"), "does not take this API key")]
)
def test_a_key_that_is_not_the_servers(
    stub: StubServer, given: tuple[str, ...], more: tuple[str, ...], cause: str
) -> None:
    stub.api_key = "sécret"
    with pytest.raises(ConfigError, match=cause) as caught:
        run("serve", "--url", stub.url, *given, *more)
    assert caught.value.exit_code == 10
    assert "--api-key KEY" in caught.value.remedy
    assert "wrong" not in str(caught.value)
    assert stub.bodies == []


def test_warm_prefix_sends_it_first_and_expects_it_back(stub: StubServer) -> None:
    stub.cached = 1024
    args, _ = parse("serve", "--workload", "W3", "--warm-prefix", "--url", stub.url, *QUICK)
    assert run("serve", "--workload", "W3", "--warm-prefix", "--url", stub.url, *QUICK) == 0
    assert (len(stub.bodies[0]["prompt"]), stub.bodies[0]["max_tokens"]) == (1024, 1)
    assert all(body["prompt"][:1024] == stub.bodies[0]["prompt"] for body in stub.bodies[1:])
    assert Plan.of(args).warm_prefix


def test_cache_is_flushed_before_each_repeat(stub: StubServer) -> None:
    run("serve", "--url", stub.url, "--workload", "W1", "--repeats", "2", "--warmup", "0", "--flush-cache")
    assert stub.flushed == 2


@pytest.mark.parametrize(
    "argv",
    [
        ("serve", "--repeats", "0"),
        ("serve", "--token-ids", "9:9"),
        ("serve", "--timeout", "0"),
        ("serve", "--api-key", "two words"),
        ("serve", "--api-key", "@/nowhere/at/all"),
        ("serve", "--url", "http://127.0.0.1:1", "--config", "f"),
        ("offline",),
        (),
    ],
)
def test_mistakes_in_the_call(argv: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*argv)
    assert caught.value.code == 2


def test_overrides_need_a_file() -> None:
    with pytest.raises(ConfigError, match="no configuration to override"):
        run("serve", "--set", "scheduler.depth=0")


def test_a_pid_that_is_nobody(stub: StubServer) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ConfigError, match="no such process"):
        run("serve", "--url", stub.url, "--pid", str(child.pid))


def test_descriptor_imports_no_client_and_no_torch() -> None:
    code = "import sys, srtkit_plugin_cli_bench; print({'httptools', 'asyncio', 'rich', 'torch'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


@dataclass
class Piece:
    """A delta, or a completion."""

    token_ids: Sequence[int]
    cached_tokens: int = 0


class EngineDouble:
    """Answers at once, two tokens a delta; records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, dict[str, Any]]] = []

    def generate(self, prompts: list[list[int]], **sampling: Any) -> list[Piece]:
        self.asked += [(len(prompt), sampling) for prompt in prompts]
        return [Piece(range(sampling["max_tokens"]), cached_tokens=5) for _ in prompts]

    async def astream(self, prompt: list[int], **sampling: Any) -> AsyncIterator[Piece]:
        self.asked.append((len(prompt), sampling))
        for start in range(0, sampling["max_tokens"], 2):
            yield Piece(range(start, start + 2))
        yield Piece(())  # the end brings no token

    def close(self) -> None: ...


SMALL = Workload("small", requests=3, prefix=0, prompt=6, output=4)
PLAN = Plan(repeats=3, warmup=0, seed=0, ids=range(100, 200), warm_prefix=False)
SAMPLING = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}


def test_offline_streams() -> None:
    engine = EngineDouble()
    driver = offline.StreamDriver(engine)
    found = run_workload(SMALL, PLAN, driver)
    driver.close()
    assert engine.asked == [(6, SAMPLING)] * 9
    repeat = found["repeats"][0]
    assert (repeat["events"], repeat["output_tokens"], repeat["prompt_tokens"]) == (6, 12, 18)
    assert "ttft_mean_s" in repeat
    assert "cached_tokens" not in repeat  # a stream does not say


def test_offline_generate_is_one_call_without_latencies() -> None:
    engine = EngineDouble()
    found = run_workload(SMALL, PLAN, offline.BatchDriver(engine))
    assert engine.asked == [(6, SAMPLING)] * 9
    repeat = found["repeats"][0]
    assert (repeat["output_tokens"], repeat["cached_tokens"]) == (12, 15)
    assert "ttft_mean_s" not in repeat


def test_generate_cannot_time_arrivals(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no arrival times"):
        run("offline", "--config", "f.toml", "--api", "generate", "--workload", "W4")
    kept = offline._without_arrivals(list(WORKLOADS.values()), named=False)
    assert [w.name for w in kept] == ["W1", "W2", "W3"]
    assert "W4 left out" in capsys.readouterr().err
