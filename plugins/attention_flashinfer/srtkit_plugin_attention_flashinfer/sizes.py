"""How much room FlashInfer's planner can ask for, and what follows from a step's shape alone. No torch.

The planner cuts rows into at most two thread blocks a multiprocessor; partial results exist only where it cuts.
"""

from __future__ import annotations

from srtkit.spec.attention import AttentionSpec
from srtkit_plugin_attention_flashinfer import Options

MIB = 1 << 20
CUDA_CORE_RATIOS = frozenset({1, 2, 3, 4, 6, 8, 16})
"""Query heads on a KV head that the decode kernel without tensor cores is compiled for."""
TENSOR_CORES_PAY = 4
"""From so many query heads on a KV head on they are faster at every size that was measured."""
LONGEST_TILE = 128
BLOCKS = 32
"""Thread blocks that a multiprocessor holds at most."""


def tensor_cores(spec: AttentionSpec, options: Options) -> bool:
    """Whether decode rows go to the kernel with tensor cores."""
    ratio = spec.q_heads // spec.kv_heads
    if options.tensor_cores == "auto":
        return ratio >= TENSOR_CORES_PAY or ratio not in CUDA_CORE_RATIOS or "fp8_kv" in spec.features
    return options.tensor_cores == "always"


def crowded(spec: AttentionSpec, rows: int, q_len: int, processors: int) -> bool:
    """Whether rows fill the device uncut. The planner of a recorded step would cut none, and keep room as if it did."""
    packed = q_len * (spec.q_heads // spec.kv_heads)
    tile = 16 if packed <= 16 else 64 if packed <= 64 or spec.head_dim >= 256 else LONGEST_TILE
    return rows * -(-packed // tile) >= 2 * processors // spec.kv_heads


def workspace_bytes(spec: AttentionSpec, processors: int) -> int:
    """Most room for partial results, float32 values and one sum each, whatever the step."""
    vector = 4 * (spec.v_head_dim + 1)
    tiles = 2 * processors * LONGEST_TILE
    decode = BLOCKS * processors * (spec.q_heads // spec.kv_heads)  # without tensor cores, a vector a block and head
    return _rounded((max(tiles, decode) + spec.q_heads) * vector)


def schedule_bytes(spec: AttentionSpec, rows: int, tokens: int, processors: int) -> int:
    """Most room for the schedule of one call: int32 lists by thread block (fa2) or by piece of work and head (fa3)."""
    blocks = max(BLOCKS * processors, tokens * (spec.q_heads // spec.kv_heads) // 16 + rows)
    pieces = tokens // LONGEST_TILE + rows + 1
    lists = max(min(pieces, 4096) * spec.q_heads, pieces) + processors
    return _rounded(max(4 * (4 * blocks + 2 * (rows + tokens)), 4 * 7 * lists))


def _rounded(size: int) -> int:
    """Room for alignment beside, in whole MiB."""
    return -(-(size + 4096) // MIB) * MIB
