"""What the bench of tiers reads out of a trace: bandwidth in bursts, and the share of copying beside kernels."""

from __future__ import annotations

import pytest

from bench.gpu.tiers import copies_of

MIB = 1 << 20


def event(kind: str, name: str, stream: int, start: float, stop: float, n_bytes: int = 0) -> dict[str, object]:
    return {"cat": kind, "name": name, "ts": start, "dur": stop - start, "args": {"stream": stream, "bytes": n_bytes}}


def test_bursts_and_what_is_beside_them() -> None:
    load, save = "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"
    found = copies_of(
        [
            event("gpu_memcpy", load, 21, 0, 100, MIB),
            event("gpu_memcpy", load, 25, 150, 250, MIB),  # the same burst, on the other stream
            event("kernel", "scatter", 21, 250, 260),  # it ends with the kernel of its own
            event("gpu_memcpy", load, 21, 5000, 5100, 2 * MIB),  # another
            event("gpu_memcpy", save, 29, 300, 400, 2 * MIB),
            event("gpu_memcpy", load, 7, 5, 6, 64),  # page tables of the step
            event("kernel", "attention", 7, 50, 200),
            event("kernel", "attention", 7, 350, 900),
        ]
    )
    assert found["copies"] == 3
    assert found["gb_per_s"] == pytest.approx(4 * MIB / 360e-6 / 1e9, abs=0.01)
    assert found["gb_per_s_of_copies_alone"] == pytest.approx(4 * MIB / 300e-6 / 1e9, abs=0.01)
    assert found["beside_kernels"] == pytest.approx((50 + 50 + 50) / 400)


def test_without_copies_there_is_nothing_to_tell() -> None:
    assert copies_of([event("kernel", "attention", 7, 0, 1)]) == {}
