"""Shapes of the kernels' programs, chosen by measurement, in one table. No torch and no Triton.

`block_m`: query vectors of a program, its query heads of one KV head beside each other. `tile`: keys of a turn.
`waves`: programs for each multiprocessor that cutting rows into parts aims at. `wide`: warps from 64 query vectors on.
`registers`: a thread's at most in a program of 16-bit queries that joins what rows share, 0 for any. Left alone, the
compiler takes more for code that few rows run, and then fewer programs are under way for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["few", "decode", "extend", "prefix"]
"""Leading rows that are too few to fill the device, those that are not, rows of any length, and what rows share."""

MAX_SEGMENTS = 128


@dataclass(frozen=True)
class Tile:
    """How one kernel is launched."""

    block_m: int
    tile: int
    warps: int
    stages: int
    waves: int = 4
    wide: int = 4
    registers: int = 0


# By architecture, kind, and bytes of a key, in the dtype of the computation, up to which the line holds: the first that
# fits. Lines of more than 512 bytes are for latent layers.
_TABLE: tuple[tuple[str, Kind, int, Tile], ...] = (
    ("sm90", "few", 256, Tile(16, 64, 4, 2, waves=2)),
    ("sm90", "decode", 128, Tile(16, 32, 2, 2, waves=8, registers=72)),
    ("sm90", "decode", 256, Tile(16, 32, 2, 2, waves=8, registers=112)),
    ("sm90", "decode", 512, Tile(16, 32, 4, 2, registers=128)),
    ("sm90", "extend", 256, Tile(64, 64, 4, 2)),
    ("sm90", "extend", 512, Tile(64, 32, 4, 2)),
    ("sm90", "few", 512, Tile(16, 32, 4, 2)),
    ("sm90", "prefix", 256, Tile(64, 64, 4, 2, waves=2)),
    ("sm90", "prefix", 512, Tile(64, 32, 4, 2, waves=2)),
    ("sm90", "few", 1152, Tile(16, 32, 4, 2, waves=2, wide=8)),
    ("sm90", "decode", 1152, Tile(16, 32, 4, 2, waves=2, wide=8)),
    ("sm90", "extend", 1152, Tile(64, 32, 8, 2)),
    ("sm90", "prefix", 1152, Tile(64, 16, 8, 2, waves=2)),
    ("", "few", 256, Tile(16, 32, 4, 2)),
    ("", "decode", 256, Tile(16, 32, 4, 2)),
    ("", "extend", 256, Tile(64, 32, 4, 2)),
    ("", "prefix", 256, Tile(64, 32, 4, 2)),
    ("gfx", "few", 1152, Tile(16, 16, 4, 1)),
    ("gfx", "decode", 1152, Tile(16, 16, 4, 1)),
    ("", "few", 512, Tile(16, 16, 4, 1)),
    ("", "decode", 512, Tile(16, 16, 4, 1)),
    ("", "few", 1 << 20, Tile(16, 16, 4, 1, wide=8)),
    ("", "decode", 1 << 20, Tile(16, 16, 4, 1, wide=8)),
    ("", "extend", 1 << 20, Tile(32, 16, 4, 1)),
    ("", "prefix", 1 << 20, Tile(32, 16, 4, 1)),
)

# The same for keys that are stored in fp8 and widened on the way; other architectures have the lines above.
_FP8: tuple[tuple[str, Kind, int, Tile], ...] = (
    ("sm90", "few", 256, Tile(16, 64, 4, 2, waves=2)),
    ("sm90", "decode", 256, Tile(16, 64, 4, 2)),
    ("sm90", "extend", 256, Tile(64, 64, 4, 2)),
    ("sm90", "prefix", 256, Tile(64, 64, 4, 2, waves=2)),
    ("sm90", "few", 512, Tile(16, 32, 4, 2)),
    ("sm90", "decode", 512, Tile(16, 32, 4, 2)),
    ("sm90", "extend", 512, Tile(64, 32, 8, 2)),
    ("sm90", "prefix", 512, Tile(64, 32, 4, 2, waves=2)),
    ("sm90", "few", 1152, Tile(16, 16, 4, 2, waves=2, wide=8)),
    ("sm90", "decode", 1152, Tile(16, 16, 4, 2, waves=2, wide=8)),
    ("sm90", "extend", 1152, Tile(64, 16, 8, 2)),
    ("sm90", "prefix", 1152, Tile(32, 32, 8, 2, waves=2)),
)


Launch = Mapping[str, bool]
ALONE: Launch = {"EARLY": False}


def launch_of(architecture: str) -> Launch:
    """How kernels are launched: from sm90 on, before the one before has ended, which they await on the device."""
    generation = architecture.removeprefix("sm")
    return {"EARLY": True, "launch_pdl": True} if generation.isdecimal() and int(generation) >= 90 else ALONE


def tile_for(architecture: str, kind: Kind, key_bytes: int, group: int, queries: int, *, fp8: bool = False) -> Tile:
    """The line of the table, with room for `queries` tokens' query heads (`group` each) if it is few."""
    lines = (*_FP8, *_TABLE) if fp8 else _TABLE
    found = next(
        tile for arch, of, limit, tile in lines if architecture.startswith(arch) and of == kind and key_bytes <= limit
    )
    most = found.block_m if kind in ("extend", "prefix") else max(found.block_m, 64)
    wanted = _power_of_two(group * queries)
    block_m = max(16, _power_of_two(group), min(most, wanted))
    warps = found.warps if block_m < 64 else max(found.wide, found.warps)
    return replace(found, block_m=block_m, warps=warps)


def segments(blocks: int, tile: Tile, keys: int, processors: int) -> int:
    """Into how many parts the keys of a row are cut: a power of two, 1 when there are `blocks` enough.

    `keys` is the longest that a row may see. Lengths of the moment play no part: a recorded step keeps the number.
    """
    wanted = _power_of_two(-(-tile.waves * processors // max(1, blocks)))
    return max(1, min(wanted, MAX_SEGMENTS, _power_of_two(-(-keys // tile.tile))))


def fitting(cut: int, tokens: int, room: int) -> int:
    """At most `cut` parts of `tokens` tokens each, for which there is room: a power of two."""
    while cut > 1 and cut * tokens > room:
        cut //= 2
    return cut


def _power_of_two(n: int) -> int:
    """The smallest that is at least n."""
    return 1 << max(0, n - 1).bit_length()
