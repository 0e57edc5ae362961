"""What `srt serve` tells its operator: how far loading is, the start-up banner, at most 12 lines, and the log."""

import logging
import sys
from typing import Any

from srtkit.config.prepare import Run
from srtkit.spec.messages import Stats

MIB = 1 << 20


def banner(run: Run, ready: dict[str, Any], url: str, seconds: float) -> list[str]:
    """The lines to print when ready."""
    config, memory, taken = run.config, run.config.memory, ready["captured"]
    parts = list(dict.fromkeys(f"{one.offer.distribution} {one.offer.version}" for one in run.wiring.plugins))
    third = -(-len(parts) // 3)
    held = " + ".join(pool.holds(config.limits.page_size) for pool in memory.pools)
    model = run.settings.model.name or run.settings.model.source
    key = ' -H "Authorization: Bearer $SRT_SERVER__API_KEY"' if run.settings.server.api_key else ""
    lines = [
        f"srtkit  {model}  ({config.model.architecture}, {config.model.dtype}) on {run.facts.name}",
        *(f"{'' if i else 'plugins':8}" + " · ".join(parts[i : i + third]) for i in range(0, len(parts), third)),
        f"memory  planned: weights {memory.weights / MIB:,.0f} + workspace {memory.workspace / MIB:,.0f} + KV "
        f"{memory.kv / MIB:,.0f} MiB ({held}) · engine process, peak so far: "
        f"{ready['peak_bytes'] / MIB:,.0f} MiB (on a CPU with Python and torch, KV pages as they are used)",
        f"limits  context {config.limits.max_context:,} · running {config.limits.max_rows} · "
        f"prompt tokens a step {run.settings.scheduler.chunk_tokens:,} · steps in flight {config.limits.depth}",
        f"ready   in {seconds:.1f} s · {url}",
        "",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\",
        '    -d \'{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}\'',
    ]
    size, figures = taken["bytes"] / MIB, f"{taken['steps']} shapes of steps captured in {taken['seconds']:.1f} s"
    graphs = (f"{figures}, {size:,.0f} MiB",) if taken["steps"] else ()
    said = (("graphs ", graphs), ("DEGRADED", run.wiring.degraded), ("note   ", config.notes))
    lines[-4:-4] = [f"{word} {' · '.join(sentences)}" for word, sentences in said if sentences]
    return lines


def log_with_time() -> None:
    """Give every line of the log its time; what is printed, as the banner is, has none."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("srtkit").setLevel(logging.INFO)


def busy_line(stats: Stats, before: Stats, seconds: float) -> str:
    """Running, waiting, pages, hit rate and rates since the last line."""
    prompt = stats.prompt_tokens - before.prompt_tokens
    cached = stats.cached_tokens - before.cached_tokens
    output = stats.output_tokens - before.output_tokens
    hit = f"{100 * cached / prompt:.0f} %" if prompt else "-"
    return (
        f"running {stats.running} · waiting {stats.waiting} · pages {stats.pages_used} used + {stats.cached_pages} "
        f"cached of {stats.pages_total} · hits {hit} · "
        f"in {prompt / seconds:,.0f} tok/s · out {output / seconds:,.0f} tok/s"
    )


def show_loading(done: int, total: int) -> None:
    """`done` of `total` bytes of weights are there."""
    if sys.stderr.isatty():
        print(f"\rloading weights: {done / total:.0%}", end="\n" if done == total else "", file=sys.stderr, flush=True)
