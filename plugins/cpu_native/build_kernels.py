"""Compiles src/ into one shared library: every file once for each instruction set, chosen at run time.

Needs GCC 11 or newer (`CXX`, else c++); no torch and no Python headers. Knows nothing of wheels.
`python build_kernels.py` builds into the package, where an editable install finds it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "srtkit_plugin_cpu_native" / "_kernels.so"
# A warning inside GCC 12's own intrinsics, and a note on an ABI change that does not concern inlined functions.
QUIET = ["-Wno-maybe-uninitialized", "-Wno-psabi"]
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=fast"]
V4 = ["-march=x86-64-v4", "-mprefer-vector-width=512"]
SETS: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "avx2": ["-march=x86-64-v3"],
        "avx512": V4,
        "avx512_bf16": [*V4, "-mavx512bf16"],
        "amx_bf16": [*V4, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
    }
}
"""Architecture → instruction set → flags; isa.cpp knows the same names."""


def compiler() -> str | None:
    """The C++ compiler's path, or None."""
    return shutil.which(os.environ.get("CXX", "c++"))  # noqa: TID251  the custom of build tools


def up_to_date(library: Path = LIBRARY) -> bool:
    """Whether the library is newer than all it is made from."""
    made_from = [Path(__file__), *(HERE / "src").iterdir()]
    return library.exists() and all(file.stat().st_mtime < library.stat().st_mtime for file in made_from)


def build(cxx: str, library: Path = LIBRARY) -> None:
    """Compile and link. Raises CalledProcessError with the compiler's words on standard error."""
    sets = SETS.get(platform.machine(), {"generic": []})
    pending = []
    jobs = [("kernels.cpp", name, flags) for name, flags in sets.items()]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = []
        for source, name, flags in [("isa.cpp", "isa", []), *jobs]:
            objects.append(f"{folder}/{name}.o")
            command = [cxx, *FLAGS, *QUIET, *flags, f"-DISA={name}", "-c", f"{HERE}/src/{source}", "-o", objects[-1]]
            pending.append(pool.submit(subprocess.run, command, check=True))
        for one in pending:
            one.result()
        # Beside the old file and renamed: a running process keeps the one it has mapped.
        subprocess.run([cxx, "-shared", "-fopenmp", "-s", *objects, "-o", f"{library}.new"], check=True)
        Path(f"{library}.new").replace(library)


if __name__ == "__main__":
    found = compiler()
    if found is None:
        sys.exit("no C++ compiler found: install one, or set CXX")
    if not up_to_date():
        build(found)
