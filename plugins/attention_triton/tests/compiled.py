"""Compiles what the backend launches for a GPU that is not here, and prints each kernel's registers and spilled bytes.

    python -m plugins.attention_triton.tests.compiled [sm90 | gfx942] [NAME]

Nothing runs: launches are caught, with the arguments that they have, and compiled in place. Not with TRITON_INTERPRET.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

import srtkit_plugin_attention_triton as plugin
from srtkit.spec.attention import MlaDims, Rotation
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.case import Case, rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_plugin_attention_triton import backend, shared, slots

TARGETS = {"sm90": (GPUTarget("cuda", 90, 32), 132), "gfx942": (GPUTarget("hip", "gfx942", 64), 304)}
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e4m3fnuz: "fp8e4b8",
}
LAUNCHED = (
    (backend, ("attend_kernel", "merge_kernel")),
    (shared, ("prefix_kernel",)),
    (slots, ("store_kernel", "store_rotated_kernel", "move_kernel")),
)


@dataclass(frozen=True)
class Compiled:
    """What one kernel of one step takes; `spilled` in bytes (registers on AMD)."""

    step: str
    kernel: str
    registers: int
    spilled: int
    shared_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.step:24} {self.kernel:14} {self.registers:4} registers, {self.spilled} spilled, "
            f"{self.shared_bytes} bytes shared"
        )


class Compiler:
    """In the place of a kernel: compiles each launch for the target, once."""

    def __init__(self, kernel: Any, target: GPUTarget, found: dict[Any, Any]) -> None:
        self.kernel = kernel
        self.target = target
        self.found = found

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *given: Any, **constants: Any) -> None:
        constants.pop("launch_pdl", None)  # of the launch, not of the program
        options = {name: constants.pop(name) for name in ("num_warps", "num_stages", "maxnreg") if name in constants}
        names = self.kernel.arg_names
        arguments = dict(zip(names, given, strict=False)) | constants
        signature, values, aligned = {}, {}, {}
        free = {names[i] if isinstance(i, int) else i for i in self.kernel.do_not_specialize or ()}
        for place, name in enumerate(names):
            value = arguments[name]
            if isinstance(value, torch.Tensor):
                signature[name] = f"*{TYPES[value.dtype]}"
                aligned[(place,)] = [["tt.divisibility", 16]]
            elif name in constants or value is None or (value == 1 and name not in free):
                signature[name], values[(place,)] = "constexpr", value
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
                if name not in free and isinstance(value, int) and value % 16 == 0:
                    aligned[(place,)] = [["tt.divisibility", 16]]
        key = (self.kernel.__name__, *signature.values(), *values.values(), *options.values())
        if key not in self.found:
            source = ASTSource(self.kernel, signature, values, aligned)
            self.found[key] = triton.compile(source, target=self.target, options=options)


def steps(harness: Harness, fp8: str) -> Iterator[tuple[str, Case]]:
    """Steps by name, in the dtypes and shapes that are served most."""
    latent = MlaDims(512, 64, 128, 128)
    layers: dict[str, dict[str, Any]] = {
        "plain": {"kv_heads": 8, "ratio": 4, "head_dim": 128},
        "wide": {"kv_heads": 8, "ratio": 2, "head_dim": 256, "window": 1024, "soft_cap": 30.0},
        "sinks": {"kv_heads": 8, "ratio": 8, "head_dim": 64, "sinks": True},
        "latent": {"ratio": 16, "mla": latent},
        "latent 128": {"ratio": 128, "mla": latent},
    }
    for layer, shape in layers.items():
        rows, many = (17, 140) if layer in ("plain", "wide", "sinks") else (140, 270)  # that are cut and that are not
        kinds: dict[str, dict[str, Any]] = {
            "few": {"rows": rows_of((3000, 1)), "leading": 1},
            "decode": {"rows": rows_of((3000, 1), *[(2, 1)] * (rows - 1)), "leading": rows},
            "many": {"rows": rows_of((3000, 1), *[(2, 1)] * (many - 1)), "leading": many},
            "tree": {"rows": rows_of((900, 40), (5, 40)), "leading": 2, "tree": True},
            "any": {"rows": rows_of((900, 1), (5, 1), (0, 40), (3, 70))},
        }
        for kv_dtype in ("", fp8):
            for kind, step in kinds.items():
                case = harness.case(dtype="bfloat16", page=64, kv_dtype=kv_dtype, **shape, **step)
                yield f"{layer}{', fp8' if kv_dtype else ''}: {kind}", case


def compiled(architecture: str, wanted: str = "") -> Iterator[Compiled]:
    """All kernels of all steps whose name has `wanted` in it, each once."""
    target, processors = TARGETS[architecture]
    fp8 = "float8_e4m3fnuz" if architecture == "gfx942" else "float8_e4m3fn"
    plugin.DTYPES["cpu"] = plugin.DTYPES["cuda"]  # nothing runs
    backend._of_device = lambda device: (architecture, processors)
    found: dict[Any, Any] = {}
    for module, names in LAUNCHED:
        for name in names:
            setattr(module, name, Compiler(getattr(module, name), target, found))
    subject = load_target(Subject("attention", "triton", "cpu"), suite_for("attention"), Path(tempfile.mkdtemp()))
    harness = Harness(subject)
    harness.descriptor = _on_any(harness.descriptor, fp8)
    seen: set[Any] = set()
    for name, case in steps(harness, fp8):
        if wanted not in name:
            continue
        step = Step(harness.rig(case), case)
        step.fill()
        step.store()
        rotate(step)
        step.attend(lse=False)
        for key in [key for key in found if key not in seen]:
            seen.add(key)
            yield Compiled(name, key[0], *resources(found[key]))


def rotate(step: Step) -> None:
    """The store again, of rotated keys, if the backend has that for this layer; heads are normed, too."""
    part, size = step.rig.backend.parts().rotated, step.rig.spec.head_dim
    if part is not None:
        rotation, weight = (
            torch.zeros(2, len(step.q), 1, size, dtype=step.q.dtype),
            torch.zeros(size, dtype=step.q.dtype),
        )
        part.store_rotated(step.plan, step.layer, step.q, *step.new, Rotation(*rotation, (weight, weight, 1e-6)))


def _on_any(descriptor: Any, fp8: str) -> Any:
    """The descriptor, its layouts being those of a device with this flavour of fp8."""

    def layouts(spec: Any, page: int, facts: Any) -> Any:
        dtypes = plugin.DTYPES["cuda"]
        return plugin.kv_layouts(spec, page, replace(facts, platform="cuda", dtypes=dtypes, fp8=fp8[len("float8_") :]))

    def build(build: Any) -> Any:
        return backend.TritonAttention(build, interpreted=True)

    return replace(descriptor, kv_layouts=layouts, build=build)


def resources(kernel: Any) -> tuple[int, int, int]:
    """Registers of a thread, what it spills, and shared memory in bytes."""
    if "amdgcn" in kernel.asm:
        numbers = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)", kernel.asm["amdgcn"])}
        return numbers["vgpr_count"], numbers["vgpr_spill_count"], kernel.metadata.shared
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        told = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    used = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", told.stdout)}
    return used["REG"], used["STACK"] + used["LOCAL"], kernel.metadata.shared


if __name__ == "__main__":
    for one in compiled(*sys.argv[1:] or ["sm90"]):
        print(one, flush=True)
