"""Compiles src/ into one extension module with any C++17 compiler (`CXX`, else c++) and the headers of this Python.

`python build_library.py` builds into the package, where an editable install finds it. Knows nothing of wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "srtkit_plugin_cache_radix_native" / "_radix.abi3.so"
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"]


def compiler() -> str | None:
    """The C++ compiler's path, or None."""
    return shutil.which(os.environ.get("CXX", "c++"))  # noqa: TID251  the custom of build tools


def up_to_date(library: Path = LIBRARY) -> bool:
    """Whether the library is newer than all it is made from."""
    made_from = [Path(__file__), *(HERE / "src").iterdir()]
    return library.exists() and all(file.stat().st_mtime < library.stat().st_mtime for file in made_from)


def build(cxx: str, library: Path = LIBRARY, extra: tuple[str, ...] = ("-s",)) -> None:
    """Compile and link, to the same bytes wherever this folder lies.

    Raises CalledProcessError with the compiler's words on standard error.
    """
    sources = sorted(str(file) for file in (HERE / "src").glob("*.cpp"))
    # Beside the old file and renamed: a running process keeps the one it has mapped.
    places = [f"-I{sysconfig.get_path('include')}", f"-ffile-prefix-map={HERE}=."]
    subprocess.run([cxx, *FLAGS, *places, *extra, *sources, "-o", f"{library}.new"], check=True)
    Path(f"{library}.new").replace(library)


if __name__ == "__main__":
    found = compiler()
    if found is None:
        sys.exit("no C++ compiler found: install one, or set CXX")
    if not up_to_date():
        build(found)
