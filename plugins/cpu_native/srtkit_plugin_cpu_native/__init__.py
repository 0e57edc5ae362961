"""Kernels for the CPU in C++: `attention:cpu-native` and `ops:cpu-native`. No torch here.

The descriptors are in attention.py and ops.py, the kernels in a shared library beside them (src/ has its
source) that was compiled when this distribution was built.
"""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).with_name("_kernels.so")
NOT_BUILT = "its kernels were not compiled, since there was no GCC when it was installed"
