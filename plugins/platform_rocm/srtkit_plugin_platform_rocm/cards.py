"""What is known of AMD's accelerators without asking one: the one table, and where each of its columns is from.

- compute units, LDS, wavefront, memory: "AMD GPU specifications", rocm.docs.amd.com/en/latest/reference/gpu-specs.html
- memory_gbps, the peak: AMD's data sheets of MI300X (5.3 TB/s) and MI355X (8 TB/s)
- fp8: "Low precision floating point types" of HIP's documentation: gfx942 has FNUZ alone, gfx950 has OCP's
- names: amdgpu.ids of libdrm
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Card:
    """The usual card of an architecture. `compute_units` of the whole card, `lds_kib` of one of them, `wavefront` in
    threads, `memory_gbps` in 10^9 bytes a second; `fp8` is the flavour that its matrix cores take.
    """

    name: str
    architecture: str
    memory_bytes: int
    memory_gbps: int
    compute_units: int
    lds_kib: int
    wavefront: int
    fp8: str


CARDS = {
    card.architecture: card
    for card in (
        Card("MI300X, 192 GB", "gfx942", 192 * GIB, 5300, 304, 64, 64, "e4m3fnuz"),
        Card("MI355X, 288 GB", "gfx950", 288 * GIB, 8000, 256, 160, 64, "e4m3fn"),
    )
}

NAMES = {
    0x74A0: "AMD Instinct MI300A",
    0x74A1: "AMD Instinct MI300X",
    0x74A2: "AMD Instinct MI308X",
    0x74A5: "AMD Instinct MI325X",
    0x74A8: "AMD Instinct MI308X HF",
    0x74A9: "AMD Instinct MI300X HF",
    0x74B5: "AMD Instinct MI300X VF",
    0x75A0: "AMD Instinct MI350X",
    0x75A3: "AMD Instinct MI355X",
    0x75B0: "AMD Instinct MI350X VF",
    0x75B3: "AMD Instinct MI355X VF",
}
"""PCI device id → what it is sold as."""
