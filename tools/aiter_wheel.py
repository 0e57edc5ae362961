"""The Python files of the amd-aiter wheel that our plugins are held to, and its Triton kernels without ROCm.

    python -m tools.aiter_wheel                          fetch it into .cache/, print the folder
    python -m tools.aiter_wheel record FOLDER VERSION    write what FOLDER defines into the tables of our plugins

Knows where files are and how aiter's packages are imported one by one; knows no plugin.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from srtkit_plugin_cli_debug.signatures import of_folder
from tools.dists import ROOT

VERSION = "0.1.7.post2.dev18"
CACHE = ROOT / ".cache" / "aiter" / VERSION
TABLES = sorted((ROOT / "plugins").glob("*/srtkit_plugin_*/signatures.json"))
AMD_ONLY = ("waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Launch options of Triton's AMD backend, which the one for NVIDIA refuses."""
STAND_IN_UNITS = 4
"""Compute units of the device that is not here: few, so that a context is cut into few segments."""


def fetch() -> Path:
    """The folder with the wheel's package `aiter`: Python files and the tuning files of its Triton kernels, 7 MB.

    Downloads the wheel (40 MB) once. Raises `subprocess.CalledProcessError` or `TimeoutExpired` where pip cannot.
    """
    if CACHE.is_dir():
        return CACHE
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as name:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", name, f"amd-aiter=={VERSION}"], check=True, timeout=100, capture_output=True)
        (wheel,) = Path(name).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = [one for one in archive.namelist() if one.startswith("aiter/") and one.endswith((".py", ".json"))]
            archive.extractall(Path(name, "files"), wanted)
        if not CACHE.is_dir():  # another process was quicker
            os.replace(Path(name, "files"), CACHE)
    return CACHE


def record(folder: Path, version: str) -> None:
    """Write the parameters of every function named in our plugins' tables, as `folder` defines them."""
    for file in TABLES:
        table = json.loads(file.read_text("utf-8"))
        names = {name for functions in table["versions"].values() for name in functions}
        table["versions"][version] = dict(sorted(of_folder(folder, names).items()))
        file.write_text(json.dumps(table, indent=2) + "\n", "utf-8")
        print(f"{file.relative_to(ROOT)}: {len(table['versions'][version])} of {len(names)}")


@contextmanager
def triton_modules(folder: Path, architecture: str = "gfx942") -> Iterator[types.SimpleNamespace]:
    """aiter's modules of Triton kernels, importable by `.load(NAME)`, on what there is: NVIDIA, or the interpreter.

    Neither `aiter/__init__.py` nor that of `aiter.ops` runs, which need ROCm. On an NVIDIA card launches lose the
    options that only AMD's backend knows; without one Triton believes in a driver for `architecture`, and kernels run
    in its interpreter (`TRITON_INTERPRET=1` before triton is imported). All of it is undone at the end.
    """
    import torch
    import triton  # type: ignore[import-untyped]

    before = set(sys.modules)
    for name in ("aiter", "aiter.ops"):
        module = types.ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = module
    undo = _on_nvidia(triton) if torch.cuda.is_available() else _on_nothing(torch, triton, architecture)
    try:
        arch = importlib.import_module("aiter.ops.triton.utils._triton.arch_info")
        arch.get_arch = lambda: architecture  # type: ignore[attr-defined]
        yield types.SimpleNamespace(load=lambda name: importlib.import_module(f"aiter.ops.triton.{name}"))
    finally:
        undo()
        for name in {one for one in sys.modules if one.partition(".")[0] == "aiter"} - before:
            del sys.modules[name]


def _on_nvidia(triton: Any) -> Callable[[], None]:
    launcher = triton.runtime.jit.JITFunction
    run = launcher.run

    def without(kernel: Any, *arguments: Any, **given: Any) -> Any:
        known = set(kernel.arg_names)
        return run(kernel, *arguments, **{k: v for k, v in given.items() if k in known or k not in AMD_ONLY})

    launcher.run = without

    def undo() -> None:
        launcher.run = run

    return undo


def _on_nothing(torch: Any, triton: Any, architecture: str) -> Callable[[], None]:
    from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]

    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    driver, patch = triton.runtime.driver, interpreter._patch_lang_tensor
    cuda = torch.cuda.current_device, torch.cuda.get_device_properties
    active = driver._active
    stand_in = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("hip", architecture, 64),
        get_current_device=lambda: 0,
        get_current_stream=lambda index: 0,
    )

    def patched(tensor: Any, scope: Any) -> None:
        """Bounds of loops are arrays of one element, of which numpy from 2.4 on makes no number."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    driver.set_active(stand_in)
    interpreter._patch_lang_tensor = patched
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(multi_processor_count=STAND_IN_UNITS)

    def undo() -> None:
        driver._active = active
        interpreter._patch_lang_tensor = patch
        torch.cuda.current_device, torch.cuda.get_device_properties = cuda

    return undo


def main() -> int:
    """Fetches the wheel; or records signatures."""
    parser = argparse.ArgumentParser(description="the amd-aiter wheel's Python files")
    actions = parser.add_subparsers(dest="action")
    one = actions.add_parser("record", help="write what FOLDER defines into the tables of our plugins")
    one.add_argument("folder", type=Path)
    one.add_argument("version")
    arguments = parser.parse_args()
    if arguments.action == "record":
        record(arguments.folder, arguments.version)
    else:
        print(fetch())
    return 0


if __name__ == "__main__":
    sys.exit(main())
