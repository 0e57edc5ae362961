"""Wheels, with and without a compiler, from a copy of the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from srtkit_plugin_cache_radix_native import LIBRARY

HERE = Path(__file__).parents[1]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
WARNING = "radix-native is installed without its library"
BUILT = "srtkit_plugin_cache_radix_native/_radix.abi3.so"
TAG = sysconfig.get_platform().replace("-", "_").replace(".", "_")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The distribution as a checkout has it, without a compiled library."""
    folder = tmp_path / "source" / "cache_radix_native"
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("*.so", "*.so.new", "__pycache__"))
    shutil.copy(HERE.parents[1] / ".gitignore", folder.parent)  # libraries are ignored unless they are artifacts
    return folder


def build(source: Path, what: str, **environment: str) -> tuple[Path, str]:
    """The one file that comes out, and what was said."""
    out = source.parents[1] / what
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{what}", "--outdir", str(out), str(source)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made, done.stdout + done.stderr


def libraries(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.endswith(".so")]


@pytest.mark.parametrize(
    ("compiler", "why"), [("/nonexistent/c++", "no C++ compiler found"), ("false", "returned non-zero exit status 1")]
)
def test_without_a_compiler_that_can_the_wheel_has_no_library_and_says_so(
    source: Path, compiler: str, why: str
) -> None:
    wheel, said = build(source, "wheel", CXX=compiler)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert libraries(wheel) == []
    assert WARNING in said
    assert why in said


def test_a_library_older_than_its_source_is_not_packed(source: Path) -> None:
    library = source / BUILT
    library.write_bytes(b"compiled")
    os.utime(library, (0, 0))
    wheel, said = build(source, "wheel", CXX="/nonexistent/c++")
    assert libraries(wheel) == []
    assert WARNING in said


def test_a_source_distribution_can_be_compiled_anywhere(source: Path) -> None:
    (source / BUILT).write_bytes(b"compiled here")
    archive, _ = build(source, "sdist")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {f"src/{file.name}" for file in (HERE / "src").iterdir()} <= names
    assert {"build_library.py", "hatch_build.py", "LICENSE", "README.md"} <= names
    assert not any(name.endswith(".so") for name in names)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_where_there_is_a_compiler_there_is_a_library() -> None:
    assert LIBRARY.exists(), "python plugins/cache_radix_native/build_library.py"


@pytest.mark.full
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_source_compiles_into_a_wheel_that_serves(source: Path) -> None:
    wheel, _ = build(source, "wheel")
    assert wheel.name.endswith(f"-cp311-abi3-{TAG}.whl"), "one wheel for every Python from 3.11 on"
    assert libraries(wheel) == [BUILT]
    unpacked = source.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    code = (
        "import numpy as np, srtkit_plugin_cache_radix_native as p\n"
        f"assert p.__file__.startswith({str(unpacked)!r})\n"
        "from srtkit.spec.prefix_cache import CacheKey, PrefixCacheBuild; from srtkit.spec.kv import FULL\n"
        "cache = p.build(PrefixCacheBuild(16, (FULL,), p.RadixOptions()))\n"
        "key = CacheKey(np.arange(32, dtype=np.int32))\n"
        "cache.insert(cache.match(key), key, {'full': np.array([3, 4], np.int32)}, 32)\n"
        "assert cache.match(key).pages['full'].tolist() == [3, 4]"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(unpacked)}, check=True)
