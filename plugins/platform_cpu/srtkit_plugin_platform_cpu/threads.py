"""The threads that compute: how many, and where they stand."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import torch

from srtkit.spec.errors import Unsupported

ALLOWED = torch.get_num_threads()
"""What torch was told before anything here told it: by OMP_NUM_THREADS, or by the program that holds the engine."""


def set_up(part: str, threads: int, pin_to: Sequence[int] = ()) -> None:
    """Use `threads` threads for operations that this thread calls; with `pin_to`, one on each of these CPUs.

    OpenMP keeps a pool for each thread that calls it, so this must run where the model will. Pinning
    starts the pool to learn its threads; `Unsupported` when it was started before, or not on Linux.
    """
    torch.set_num_threads(threads)
    if not pin_to:
        return
    if sys.platform != "linux":
        raise Unsupported(part, "can pin threads on Linux only", "set pin = false")
    before = _thread_ids()
    torch.zeros(threads, 1 << 16).add_(1)  # large enough to be split among all threads
    workers = sorted(_thread_ids() - before)
    if len(workers) != threads - 1:
        raise Unsupported(
            part,
            f"cannot pin: {len(workers)} of {threads - 1} threads were started by this call, the others before",
            "set pin = false, or build the engine before anything else computes with torch",
        )
    for thread, cpu in zip((threading.get_native_id(), *workers), pin_to, strict=False):
        os.sched_setaffinity(thread, {cpu})


def _thread_ids() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}
