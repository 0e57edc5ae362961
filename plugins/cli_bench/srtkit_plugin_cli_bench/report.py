"""Results as a table and as JSON. Knows the result's plain data, measures nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_MILLI = 1e3
_COUNT = 0
# (figure, label, factor from the figure to the label's unit; _COUNT: a whole number)
_ROWS = (
    ("ttft_mean_s", "TTFT mean, ms", _MILLI),
    ("ttft_p50_s", "TTFT p50, ms", _MILLI),
    ("ttft_p99_s", "TTFT p99, ms", _MILLI),
    ("itl_mean_s", "ITL mean, ms", _MILLI),
    ("itl_p50_s", "ITL p50, ms", _MILLI),
    ("itl_p99_s", "ITL p99, ms", _MILLI),
    ("tpot_mean_s", "TPOT mean, ms", _MILLI),
    ("tpot_p99_s", "TPOT p99, ms", _MILLI),
    ("decode_tok_s", "decode tok/s", 1),
    ("output_tok_s", "output tok/s", 1),
    ("total_tok_s", "total tok/s", 1),
    ("seconds", "seconds", 1),
    ("prompt_tokens", "prompt tokens", _COUNT),
    ("cached_tokens", "cached tokens", _COUNT),
    ("output_tokens", "output tokens", _COUNT),
    ("failed", "failed", _COUNT),
)
_MIB = 2**20
_WIDTH = 110  # of a table that goes to a file


def write_json(result: dict[str, Any], path: str) -> None:
    """Writes the whole result."""
    Path(path).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def print_tables(result: dict[str, Any], file: TextIO) -> None:
    """Workloads side by side, then start-up and memory, then errors and notes."""
    console = Console(file=file, width=None if file.isatty() else _WIDTH)
    console.print(_workloads(result))
    if rows := [*_startup(result.get("startup")), *_memory(result.get("memory"))]:
        table = Table("start-up and memory", "")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for name, found in result["workloads"].items():
        for line in (*found["errors"], *found["notes"]):
            console.print(f"{name}: {line}", markup=False, highlight=False)


def _workloads(result: dict[str, Any]) -> Table:
    workloads = result["workloads"]
    title = escape(f"srt bench {result['kind']}: {result['label']}")
    table = Table(escape("median [low, high]"), *workloads, title=title)
    for key, label, factor in _ROWS:
        spreads = [found["summary"].get(key) for found in workloads.values()]
        if any(spreads):
            table.add_row(label, *(_cell(spread, factor) for spread in spreads))
    return table


def _cell(spread: dict[str, float] | None, factor: float) -> str:
    if spread is None:
        return "-"
    median, low, high = (_number(spread[key], factor) for key in ("median", "low", "high"))
    return median if low == high else escape(f"{median} [{low}, {high}]")


def _number(figure: float, factor: float) -> str:
    """Three digits or all before the point: more would pretend; the JSON has them."""
    if factor == _COUNT:
        return f"{figure:.0f}"
    value = figure * factor
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def _startup(startup: dict[str, float] | None) -> list[tuple[str, str]]:
    labels = {"ready_s": "ready", "first_completion_s": "first completion answered"}
    return [(label, f"{startup[key]:.2f} s") for key, label in labels.items() if startup and key in startup]


def _memory(memory: dict[str, int | None] | None) -> list[tuple[str, str]]:
    labels = {
        "pss_ready_bytes": "PSS when ready",
        "pss_peak_bytes": "PSS peak, sampled",
        "rss_peak_bytes": "RSS high-water marks, summed",
        "kv_bytes": "KV pools as stated",
        "kv_resident_bytes": "KV pages ever written",
        "pss_ready_without_kv_bytes": "PSS when ready without KV",
        "pss_peak_without_kv_bytes": "PSS peak without KV",
    }
    rows = [(label, (memory or {}).get(key)) for key, label in labels.items()]
    return [(label, f"{value / _MIB:.0f} MiB") for label, value in rows if value is not None]
