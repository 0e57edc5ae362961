"""The figures of /metrics, in Prometheus' text format; every name starts with `srtkit_`.

The engine's figures are read off its latest `Stats` when somebody asks; only what the HTTP side alone sees
(latencies, answers) is counted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from srtkit.spec.messages import Stats
from srtkit.spec.routes import Event, Running

_TTFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
_E2E = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
_TIERS: Mapping[str, tuple[type[GaugeMetricFamily | CounterMetricFamily], str]] = {
    "pages": (GaugeMetricFamily, "Pages that a tier below the device has room for."),
    "used": (GaugeMetricFamily, "Pages that it holds."),
    "bytes": (GaugeMetricFamily, "Bytes of these."),
    "attached": (GaugeMetricFamily, "1 when it is used, 0 when it is detached."),
    "read": (CounterMetricFamily, "Pages brought nearer to the device."),
    "misses": (CounterMetricFamily, "Pages that it was asked for and did not give in time."),
    "written": (CounterMetricFamily, "Pages that it took."),
    "failed": (CounterMetricFamily, "Pages whose copy failed."),
}
"""What `CacheStats.tiers` may have."""


class _EngineFigures(Collector):
    """The engine's latest figures; zeros before the first have come."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Called at every scrape."""
        s = self._running.stats or Stats()
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for family, name, text, value in (
            (gauge, "running", "Sequences in the batch.", s.running),
            (gauge, "waiting", "Requests in the queue.", s.waiting),
            (gauge, "pages_used", "KV pages of running sequences.", s.pages_used),
            (gauge, "pages_cached", "KV pages kept for reuse.", s.cached_pages),
            (gauge, "pages_total", "KV pages there are.", s.pages_total),
            (gauge, "cache_hit_rate", "Share of prompt tokens cached.", s.cached_tokens / (s.prompt_tokens or 1)),
            (counter, "prompt_tokens", "Tokens in.", s.prompt_tokens),
            (counter, "cached_tokens", "Prompt tokens found in the cache.", s.cached_tokens),
            (counter, "output_tokens", "Tokens out.", s.output_tokens),
            (counter, "aborted", "Sequences aborted.", s.aborted),
            (counter, "retracted", "Sequences put back when pages ran out.", s.retracted),
            (counter, "steps", "Steps of the engine.", s.steps),
            (counter, "eager_steps", "Steps that ran without a captured graph.", s.eager_steps),
        ):
            yield family(f"srtkit_{name}", text, value)
        for name, (kind, text) in _TIERS.items():
            tiers = kind(f"srtkit_tier_{name}", text, labels=["tier"])
            for tier, found in s.tiers.items():
                if name in found:
                    tiers.add_metric([tier], found[name])
            if tiers.samples:
                yield tiers


class Metrics:
    """The figures of one server, in a registry of its own. Times are in seconds, as the client could see them."""

    def __init__(self, running: Running) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_EngineFigures(running))
        degraded = Gauge("srtkit_degraded", "1 when a fallback of the configuration is in use.", registry=registry)
        degraded.set(bool(running.degraded))
        self._ttft = Histogram("srtkit_ttft_seconds", "Arrival to first token.", buckets=_TTFT, registry=registry)
        self._itl = Histogram("srtkit_itl_seconds", "Between tokens of one sequence.", buckets=_ITL, registry=registry)
        self._e2e = Histogram("srtkit_e2e_seconds", "Arrival to the last token.", buckets=_E2E, registry=registry)
        text = "Answers, by HTTP status (499: the client hung up)."
        self._requests = Counter("srtkit_requests", text, ["status"], registry=registry)
        self._ends = Counter("srtkit_sequences", "Sequences, by why they ended.", ["finish_reason"], registry=registry)

    def observe(self, event: Event) -> None:
        """Count an event."""
        match event.name:
            case "first_token":
                self._ttft.observe(event.seconds)
            case "next_token":
                self._itl.observe(event.seconds)
            case "end":
                self._e2e.observe(event.seconds)
                self._ends.labels(event.detail).inc()
            case "answer":
                self._requests.labels(event.detail).inc()

    def text(self) -> bytes:
        """What /metrics answers."""
        return generate_latest(self._registry)
