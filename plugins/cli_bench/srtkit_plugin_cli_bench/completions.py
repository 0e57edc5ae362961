"""OpenAI's streamed completions: the body of a request, and a trace from the events of its answer."""

from __future__ import annotations

import json
from typing import Any

from srtkit_plugin_cli_bench.http_stream import DONE, Exchange
from srtkit_plugin_cli_bench.trace import Trace
from srtkit_plugin_cli_bench.workloads import Request

PATH = "/v1/completions"


def encode_body(model: str, request: Request) -> bytes:
    """Greedy, exactly `max_tokens` tokens, streamed with usage."""
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body, separators=(",", ":")).encode()


def read_trace(exchange: Exchange) -> Trace:
    """Times of the events with output and the server's own token counts.

    An answer without usage is an error: events cannot be counted as tokens, because a server may put
    several into one.
    """
    trace = Trace(exchange.sent, error=exchange.error)
    if exchange.status not in (0, 200):
        trace.error = f"status {exchange.status}: {exchange.refusal[:300].decode('utf-8', 'replace')}"
    if trace.error:
        return trace
    usage = None
    for now, payload in exchange.events:
        if payload == DONE:
            break
        try:
            event = json.loads(payload)
        except ValueError:
            trace.error = f"an event is not JSON: {payload[:80]!r}"
            return trace
        if event.get("error"):
            trace.error = f"error event: {event['error']}"
            return trace
        usage = event.get("usage") or usage
        if any(_has_output(choice, bool(trace.arrivals)) for choice in event.get("choices") or ()):
            trace.arrivals.append(now)
    _count(trace, usage)
    return trace


def _has_output(choice: dict[str, Any], begun: bool) -> bool:
    """Whether this choice brings output: not if it only closes the stream with an empty text."""
    text = choice.get("text")
    if text is None:
        return False
    return bool(text) or not (begun and choice.get("finish_reason"))


def _count(trace: Trace, usage: dict[str, Any] | None) -> None:
    if not trace.arrivals:
        trace.error = "no output"
        return
    try:
        counts = usage or {}
        trace.prompt_tokens = counts["prompt_tokens"]
        trace.output_tokens = counts["completion_tokens"]
    except KeyError as error:
        trace.error = f"the server's usage has no {error} (stream_options.include_usage)"
        return
    trace.cached_tokens = (counts.get("prompt_tokens_details") or {}).get("cached_tokens")
