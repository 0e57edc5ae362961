"""FlashInfer on a machine without a network: a small wheel for it, and the modules that the conformance suite loads.

    python -m bench.gpu.flashinfer_modules slim WHEEL FOLDER            # anywhere; needs only the wheel
    python -m bench.gpu.flashinfer_modules build FOLDER [--seconds N]   # on the GPU, with nvcc; packs go to FOLDER
    python -m bench.gpu.flashinfer_modules unpack FOLDER                # packs into the installed package

A module is built without the kernels that the plugin never calls: those of dense keys, of scored items, and those that
the launcher takes on cards with less shared memory than a Hopper GPU's.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import importlib
import importlib.util
import os
import signal
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

KEPT = ("flashinfer/data/include/", "flashinfer/data/cccl/", "flashinfer/data/spdlog/", "flashinfer/data/cutlass/")
"""Headers of its kernels."""
LARGEST_SOURCE = 150_000
ENTRIES = ("flashinfer", "flashinfer.jit.attention.modules")
LAZY = ("flashinfer.prefill", "flashinfer.decode", "flashinfer.jit.core", "flashinfer.utils")
"""Modules whose functions import more when they are called."""
UNUSED_KERNELS = ("ragged_", "mask_3")
WINDOWED = {"fa2": "mask_2", "fa3": "mask_0"}
"""Unused with windows: they are written into masks, and go with a causal order."""
PACK_BYTES = 14 << 20
DISPATCH = "#define DISPATCH_NUM_MMA_KV("
OF_ONE_CARD = """#define DISPATCH_NUM_MMA_KV(most, NUM_MMA_KV, ...) \\
  { \\
    constexpr uint32_t sm = 233472, block = 232448; \\
    constexpr uint32_t least = kFixedSmem + kMinValidMmaKV * kKVSmemPerMmaKV; \\
    constexpr uint32_t room = sm >= 2 * least ? sm / 2 : block; \\
    constexpr uint32_t fits = (room - kFixedSmem) / kKVSmemPerMmaKV; \\
    constexpr uint32_t n = fits < max_num_mma_kv_reg ? fits : max_num_mma_kv_reg; \\
    constexpr size_t NUM_MMA_KV = n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1; \\
    const size_t here = most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : most; \\
    if (here != NUM_MMA_KV) { \\
      FLASHINFER_ERROR("this module was built for a card with 227 KiB of shared memory a block"); \\
    } else { \\
      __VA_ARGS__ \\
    } \\
  }
"""
"""In place of FlashInfer's macro, which compiles four sizes and chooses when it runs: the one that it would choose."""
AT_ONCE = 8
"""Modules that are built beside each other, with `JOBS` compilers each."""
JOBS = 3


# --- a small wheel


def slim(wheel: Path, folder: Path) -> Path:
    """Write a wheel of the same name with what paged attention needs of it."""
    target = folder / wheel.name
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        (record,) = [name for name in source.namelist() if name.endswith(".dist-info/RECORD")]
        imported = _imported(source)
        lines = [f"{record},,"]
        for info in source.infolist():
            if info.filename in imported or (info.filename != record and _data(info)):
                content = source.read(info)
                made.writestr(info.filename, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                lines.append(f"{info.filename},sha256={digest},{len(content)}")
        made.writestr(record, "\n".join(lines) + "\n")
    return target


def _data(info: zipfile.ZipInfo) -> bool:
    name = info.filename
    if name.startswith("flashinfer/data/csrc/"):  # shared headers and templates; families of kernels have folders
        return name.count("/") == 3 and info.file_size < LARGEST_SOURCE
    return name.startswith(KEPT) or ".dist-info/" in name


def _imported(wheel: zipfile.ZipFile) -> set[str]:
    """Files of the modules that are loaded when the entries are imported and used."""
    names, files = set(wheel.namelist()), set()
    ahead = [*ENTRIES, *LAZY]
    seen: set[str] = set()
    while ahead:
        module = ahead.pop()
        if module in seen:
            continue
        seen.add(module)
        path = module.replace(".", "/")
        file = next((one for one in (f"{path}/__init__.py", f"{path}.py") if one in names), "")
        if not file:
            continue  # a name in a module, or another package
        files.add(file)
        package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
        ahead.append(package)
        for node in _statements(ast.parse(wheel.read(file)), inside=module in LAZY):
            if isinstance(node, ast.Import):
                ahead += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
                source = ".".join(part for part in (base, node.module) if part)
                ahead += [source, *(f"{source}.{alias.name}" for alias in node.names)]
    return files


def _statements(node: ast.AST, *, inside: bool) -> Iterator[ast.AST]:
    """All below a node; those inside functions only if told."""
    for child in ast.iter_child_nodes(node):
        yield child
        if inside or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _statements(child, inside=inside)


# --- modules


Need = tuple[str, str, str, int, bool, bool]
"""Kernels ("fa2", "fa3", "decode"), dtype, KV dtype, head size, window or none, soft cap or none."""


def needs() -> list[Need]:
    """What the suite loads up to level 2; what takes longest first."""
    from srtkit.spec.facts import DeviceFacts
    from srtkit_conformance.catalogue import suite_for
    from srtkit_conformance.checks.attention.numerics import matrix
    from srtkit_conformance.find import Subject, load_target
    from srtkit_conformance.kits.attention.case import rows_of
    from srtkit_conformance.kits.attention.harness import Harness
    from srtkit_plugin_attention_flashinfer import Options
    from srtkit_plugin_attention_flashinfer.sizes import tensor_cores

    card = DeviceFacts("cuda", "a Hopper GPU", "sm90", dtypes=frozenset({"bfloat16", "float16"}), fp8="e4m3fn")
    target = load_target(Subject("attention", "flashinfer"), suite_for("attention"), Path())
    harness = Harness(replace(target, facts=card))
    kv_dtypes = ["", *sorted(name for name in harness.can.kv_dtypes if name.startswith("float8"))]
    rows = rows_of((99, 33))
    both: tuple[dict[str, Any], ...] = ({}, {"window": 24, "soft_cap": 30.0})
    each = (*both, {"window": 24}, {"soft_cap": 2.0})
    cases = [harness.case(rows, **one) for one in each]
    cases += [harness.case(rows, **one, head_dim=size) for size in (128, 256) for one in both]
    cases += [harness.case(rows, **one, dtype="float16") for one in both]
    cases += [harness.case(rows, kv_dtype=name) for name in kv_dtypes]
    cases += [case for _, case in matrix(harness)]
    found: dict[Need, None] = {}
    for case in cases:
        spec = case.spec
        rest = spec.dtype, spec.kv_dtype, spec.head_dim, spec.window > 0, spec.soft_cap > 0
        found["fa2", *rest] = None
        if case.tree:
            found["fa2", *rest[:3], False, rest[4]] = None  # windows are in the masks
        if spec.kv_dtype == spec.dtype and max(case.tokens, sum(row.stored for row in case.rows)) > 64:
            found["fa3", *rest] = None
        if not tensor_cores(spec, Options()):
            found["decode", *rest] = None
    return sorted(found, key=lambda need: need[0] != "fa3")


def generated(need: Need) -> Any:
    """FlashInfer's description of how a module is built, less the kernels that nobody calls."""
    import torch

    modules = importlib.import_module("flashinfer.jit.attention.modules")
    kernels, dtype, kv_dtype, size, window, cap = need
    q, kv, index = getattr(torch, dtype), getattr(torch, kv_dtype), torch.int32
    if kernels == "decode":
        return modules.gen_batch_decode_module(q, kv, q, index, size, size, 0, window, cap)
    shape = (q, kv, q, index, size, size, 0, window, cap, False)
    if kernels == "fa3":
        made = modules.gen_batch_prefill_module("fa3", *shape)
    else:
        made = modules._gen_batch_prefill_primary_module("fa2", *shape)
    unused = [*UNUSED_KERNELS, *([WINDOWED[kernels]] if window else [])]
    made.extra_ldflags = ["-Wl,-z,lazy"]  # what is left out is not looked for when the module is loaded
    made.sources = [path for path in made.sources if not any(part in path.name for part in unused)]
    return made


def of_one_card() -> None:
    """Change the installed package's header, so that of each kernel one size is compiled."""
    found = importlib.util.find_spec("flashinfer")
    assert found is not None and found.origin is not None, "flashinfer is not installed"
    header = Path(found.origin).parent / "data" / "include" / "flashinfer" / "utils.cuh"
    text = header.read_text()
    if OF_ONE_CARD not in text:  # a later date would have ninja build everything again
        before, rest = text.split(DISPATCH)
        header.write_text(before + OF_ONE_CARD + "\n" + rest.partition("\n\n")[2])


def build(folder: Path, seconds: float) -> int:
    """Build modules until the time is over, put them into the package, and write packs. How many are missing."""
    end = time.monotonic() + seconds
    of_one_card()
    wanted = [one for one in map(generated, needs()) if not one.is_aot]
    print(f"{len(wanted)} modules to build", flush=True)

    def work(spec: Any) -> None:
        spec.write_ninja()
        left = end - time.monotonic()
        if left <= 0:
            return
        begin = time.monotonic()
        command = ["ninja", "-j", str(JOBS), "-f", str(spec.ninja_path)]
        ninja = subprocess.Popen(
            command, cwd=spec.build_dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
        )
        try:
            said, _ = ninja.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            os.killpg(ninja.pid, signal.SIGKILL)  # its compilers too
            ninja.communicate()
            return
        end_of_log = "" if ninja.returncode == 0 else "\n" + said[-3000:]
        print(f"{time.monotonic() - begin:6.0f} s  {ninja.returncode}  {spec.name}{end_of_log}", flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(work, wanted))
    built = [one.jit_library_path for one in wanted if one.jit_library_path.exists()]
    for path in built:
        _put(path)
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(_pack, folder), enumerate(_portions(sorted(_built().glob("*/*.so"))))))
    print(f"{len(built)} of {len(wanted)} modules built", flush=True)
    return len(wanted) - len(built)


def _pack(folder: Path, numbered: tuple[int, list[Path]]) -> None:
    number, paths = numbered
    with tarfile.open(folder / f"flashinfer-modules-{number}.tar.xz", "w:xz", preset=3) as pack:
        for path in paths:
            pack.add(path, path.name)


def unpack(folder: Path) -> None:
    """Bring packs to where the package looks for built modules."""
    for path in sorted(folder.glob("flashinfer-modules-*.tar.xz")):
        with tarfile.open(path) as pack, tempfile.TemporaryDirectory() as name:
            pack.extractall(name, filter="data")
            for library in Path(name).iterdir():
                _put(library)


def _built() -> Path:
    """Where the installed package looks for built modules."""
    found = importlib.util.find_spec("flashinfer")
    assert found is not None and found.origin is not None, "flashinfer is not installed"
    return Path(found.origin).parent / "data" / "aot"


def _put(library: Path) -> None:
    place = _built() / library.stem / library.name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(library.read_bytes())


def _portions(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Files by turns of about as many bytes as compress to one pack."""
    part: list[Path] = []
    for path in paths:
        if part and sum(one.stat().st_size for one in (*part, path)) > 3 * PACK_BYTES:
            yield part
            part = []
        part.append(path)
    if part:
        yield part


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("slim", "build", "unpack"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=400)
    given = parser.parse_args()
    if given.what == "slim":
        print(slim(*given.paths))
    elif given.what == "build":
        return min(1, build(given.paths[0], given.seconds))
    else:
        unpack(given.paths[0])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
