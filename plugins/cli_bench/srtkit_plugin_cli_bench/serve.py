"""`srt bench serve`: joins server, load and report. Each of them knows nothing of the others."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

from srtkit.spec.errors import ConfigError, EngineError
from srtkit_plugin_cli_bench import facts, process, report, workloads
from srtkit_plugin_cli_bench.completions import PATH, encode_body, read_trace
from srtkit_plugin_cli_bench.http_stream import encode_post, exchange
from srtkit_plugin_cli_bench.load import Plan, progress, run_workload, send_at_arrival
from srtkit_plugin_cli_bench.server import Server
from srtkit_plugin_cli_bench.target import Target, call, first_model, resolve
from srtkit_plugin_cli_bench.trace import Trace
from srtkit_plugin_cli_bench.workloads import Request


class HttpDriver:
    """Sends requests to an OpenAI-compatible server."""

    def __init__(self, target: Target, model: str, timeout: float, flush: bool) -> None:
        self._target = target
        self._model = model
        self._timeout = timeout
        self._flush = flush

    def reset(self) -> None:
        """Empties the server's prefix cache if that was asked for; raises EngineError when it refuses."""
        if self._flush:
            status, _ = call(self._target, "POST", "/flush_cache")
            if status != 200:
                raise EngineError(self._target.part, f"/flush_cache answered {status}", "leave out --flush-cache")

    def run(self, requests: list[Request]) -> list[Trace]:
        """Encodes all requests, then sends each at its time on a connection of its own."""
        encoded = [encode_post(self._target, PATH, encode_body(self._model, request)) for request in requests]
        sends = [partial(self._send, data) for data in encoded]
        return asyncio.run(send_at_arrival(requests, sends))

    async def _send(self, encoded: bytes) -> Trace:
        return read_trace(await exchange(self._target, encoded, self._timeout))


def bench_serve(args: argparse.Namespace) -> int:
    """Runs `srt bench serve`; raises SrtError when there is nothing to measure."""
    if args.set and not args.config:
        raise ConfigError("--set", "there is no configuration to override", "give --config FILE")
    _end_in_order_on_sigterm()
    with ExitStack() as stack:
        server = None
        if args.config:
            server = stack.enter_context(Server(args.config, args.set, args.start_timeout, args.api_key))
        target = server.target if server else resolve(args.url, args.allow_remote, args.api_key)
        result = _measure(args, target, server)
    if server:
        result["startup"]["processes_left_behind"] = len(server.left_behind)
    if args.json:
        report.write_json(result, args.json)
    report.print_tables(result, sys.stdout)
    return 1 if any(found["errors"] for found in result["workloads"].values()) else 0


def _measure(args: argparse.Namespace, target: Target, server: Server | None) -> dict[str, Any]:
    model = args.model or first_model(target)
    startup = _startup(server, target, model, args.token_ids) if server else None
    pid = server.pid if server else args.pid
    if pid is not None and not process.tree(pid):
        raise ConfigError(f"--pid {pid}", "there is no such process", "give the pid of `srt serve`")
    plan = Plan.of(args)
    driver = HttpDriver(target, model, args.timeout, args.flush_cache)
    info = _server_info(target)
    result: dict[str, Any] = {
        "schema": 1,
        "kind": "serve",
        "label": f"{model} at {target.url}",
        "facts": facts.environment(secret=args.api_key),
        "settings": plan.as_data(),
        "startup": startup,
        "server_info": info,
    }
    chosen = workloads.select(args.workload)
    if pid is None:
        result["workloads"] = {w.name: run_workload(w, plan, driver) for w in chosen}
        return result
    ready = process.pss_bytes(pid)
    with process.PeakPss(pid) as peak:
        result["workloads"] = {w.name: _with_cpu_time(w, plan, driver, pid) for w in chosen}
        peak.sample()
    result["memory"] = _memory(pid, ready, peak.bytes, _server_info(target))  # pages written by now
    return result


def _with_cpu_time(workload: workloads.Workload, plan: Plan, driver: HttpDriver, pid: int) -> dict[str, Any]:
    """`cpu_s` says whether the machine was quiet: CPU seconds of anything but server and load generator."""
    before = process.CpuReading.take(pid)
    found = run_workload(workload, plan, driver)
    return found | {"cpu_s": process.CpuReading.take(pid).since(before)}


def _startup(server: Server, target: Target, model: str, ids: range) -> dict[str, Any]:
    """Seconds from spawning to /health, and to the first answered completion."""
    body = {"model": model, "prompt": list(ids[:4]), "max_tokens": 1, "ignore_eos": True}
    status, _ = call(target, "POST", PATH, body, timeout=60.0)
    if status != 200:
        raise EngineError(target.part, f"the first completion was answered with {status}", "see `srt doctor`")
    found: dict[str, Any] = {"ready_s": server.ready_seconds, "first_completion_s": server.seconds_since_start()}
    progress(f"ready after {found['ready_s']:.2f} s, first completion after {found['first_completion_s']:.2f} s")
    return found


def _server_info(target: Target) -> dict[str, Any] | None:
    """What the server says of itself; None for a server that has no /server_info."""
    status, info = call(target, "GET", "/server_info")
    return info if status == 200 and isinstance(info, dict) else None


def _memory(pid: int, ready: int, peak: int, info: dict[str, Any] | None) -> dict[str, int | None]:
    """What is left without KV pages, as the server states them.

    A server of ours says how much of its pools has ever been written (`kv_resident_bytes`): nothing when it
    gets ready, and only that is in PSS. Of another server the whole pools are subtracted.
    """
    memory = (info or {}).get("memory") or {}
    written, kv = memory.get("kv_resident_bytes"), memory.get("kv_bytes")
    at_ready, at_peak = (0, written) if written is not None else (kv, kv)
    return {
        "pss_ready_bytes": ready,
        "pss_peak_bytes": peak,
        "rss_peak_bytes": process.peak_rss_bytes(pid),
        "kv_bytes": kv,
        "kv_resident_bytes": written,
        "pss_ready_without_kv_bytes": None if at_ready is None else ready - at_ready,
        "pss_peak_without_kv_bytes": None if at_peak is None else peak - at_peak,
    }


def _end_in_order_on_sigterm() -> None:
    """So that a server we started does not outlive us."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
