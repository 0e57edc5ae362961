"""What bites on a machine with AMD GPUs: driver, rights, variables, ROCm's files, the kernel's settings, power caps.

Each finding has its remedy. Reads files only; knows nothing of how the device is used.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from srtkit.spec.platform import Finding
from srtkit_plugin_platform_rocm.cards import NAMES
from srtkit_plugin_platform_rocm.topology import ROOT, Gpu, text, visible

AMD = "0x1002"
COMPUTE_CLASSES = ("0x0302", "0x0380", "0x12")
"""PCI classes of accelerators, as text starts: a processor's own graphics (0x0300) are no reason to complain."""
CONTAINER = "in a container: docker run --device=/dev/kfd --device=/dev/dri --group-add video --group-add render"
ROCR, HIP, CUDA = (f"{name}_VISIBLE_DEVICES" for name in ("ROCR", "HIP", "CUDA"))


def may_use(path: Path) -> bool:
    """Whether this process may open a device."""
    return os.access(path, os.R_OK | os.W_OK)


def torch_version_file() -> Path | None:
    """Where the installed torch says what it was built for; torch is not imported for it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).with_name("version.py") if spec and spec.origin else None


@dataclass(frozen=True)
class Machine:
    """This machine: the variables a rank would have, and files below `root`. The last two are replaced in tests."""

    environment: Mapping[str, str]
    root: Path = ROOT
    torch: Path | None = field(default_factory=torch_version_file)
    may: Callable[[Path], bool] = may_use

    def findings(self) -> Sequence[Finding]:
        """One "ok" where no AMD GPU is."""
        gpus = visible(self.root)
        accelerators = [path.name for path in sorted((self.root / "sys/bus/pci/devices").glob("*")) if _computes(path)]
        if not gpus and not accelerators and not (self.root / "dev/kfd").exists():
            return [Finding("ok", "AMD GPU", "none is here")]
        checks = (
            self._driver(gpus, accelerators),
            *(() if not gpus else (self._visibility(len(gpus)), self._power(gpus))),
            self._torch(),
            self._rocm(),
            self._numa(),
        )
        return [finding for check in checks for finding in check]

    def _driver(self, gpus: Sequence[Gpu], accelerators: Sequence[str]) -> Iterator[Finding]:
        kfd = self.root / "dev/kfd"
        if not kfd.exists():
            where = f"PCI device {accelerators[0]}" if accelerators else "a GPU of the topology"
            yield Finding("fail", "/dev/kfd", f"is absent beside {where}: sudo modprobe amdgpu; {CONTAINER}")
            return
        if not gpus:
            yield Finding("fail", "AMD GPU", f"the driver shows this process none: see dmesg for amdgpu; {CONTAINER}")
        for kind in dict.fromkeys((gpu.device_id, gpu.architecture) for gpu in gpus):
            count = sum((gpu.device_id, gpu.architecture) == kind for gpu in gpus)
            yield Finding("ok", "AMD GPU", f"{count} x {NAMES.get(kind[0], hex(kind[0]))} ({kind[1]})")
        renders = [self.root / f"dev/dri/renderD{gpu.render}" for gpu in gpus]
        closed = [f"/{path.relative_to(self.root)}" for path in (kfd, *renders) if not self.may(path)]
        if closed:
            remedy = f"sudo usermod -aG render,video $USER, and log in again; {CONTAINER}"
            yield Finding("fail", closed[0], f"cannot be opened by this user{_more(closed)}: {remedy}")

    def _visibility(self, count: int) -> Iterator[Finding]:
        """The HSA runtime applies ROCR's list; HIP then its own to what is left, or CUDA's where that is not set."""
        lists = {name: self.environment[name].split(",") for name in (ROCR, HIP, CUDA) if name in self.environment}
        for name, entries in lists.items():
            if entries == [""] or entries[0].strip() == "-1":
                yield Finding("fail", name, f"hides every GPU from torch: unset {name}, or name some")
                return
        if HIP in lists and CUDA in lists and lists[HIP] != lists[CUDA]:
            yield Finding("warn", CUDA, f"says something else than {HIP}, which HIP follows: unset {CUDA}")
        elif CUDA in lists and HIP not in lists:
            yield Finding("warn", CUDA, f"is followed by HIP, but not by all of ROCm's programs: use {HIP}")
        inner = HIP if HIP in lists else CUDA
        if ROCR in lists and inner in lists:
            detail = f"counts within the {len(lists[ROCR])} GPUs that {ROCR} leaves: set one of both"
            yield Finding("warn", inner, detail)
        left = count
        for name in (ROCR, inner):
            beyond = [int(entry) for entry in lists.get(name, ()) if entry.strip().isdigit() and int(entry) >= left]
            if beyond:
                yield Finding("fail", name, f"names GPU {beyond[0]}, and there are {left}, from 0 on: correct it")
                return
            left = len(lists.get(name, range(left)))

    def _torch(self) -> Iterator[Finding]:
        said = text(self.torch) if self.torch else ""
        version, hip = (_assigned(said, name) for name in ("__version__", "hip"))
        if not version:
            detail = "is not installed: take a build for ROCm from pytorch.org/get-started"
            yield Finding("fail", "torch for ROCm", detail)
        elif not hip:
            detail = f"torch {version} was built without ROCm: take a build for it from pytorch.org/get-started"
            yield Finding("fail", "torch for ROCm", detail)
        else:
            yield Finding("ok", "torch for ROCm", f"{version}, HIP {hip}")

    def _rocm(self) -> Iterator[Finding]:
        """aiter compiles with hipcc, and asks hipconfig or, later versions, this file while it is imported."""
        variables = ("ROCM_HOME", "ROCM_PATH")
        named = next((self.environment[name] for name in variables if self.environment.get(name)), "/opt/rocm")
        home = self.root / named.lstrip("/")
        programs = os.pathsep.join((str(home / "bin"), self.environment.get("PATH", "")))
        if not shutil.which("hipcc", path=programs):
            detail = f"is neither in {named}/bin nor on the PATH, and aiter compiles its kernels with it when they are "
            detail += "first called: install ROCm's development packages (rocm-dev), or set ROCM_PATH to where they are"
            yield Finding("warn", "hipcc", detail)
        version, hipconfig = text(home / ".info/version"), shutil.which("hipconfig", path=programs)
        if version:
            yield Finding("ok", "ROCm", f"{version} in {named}")
        if not version and not hipconfig:
            detail = f"neither {named}/.info/version nor hipconfig is here, and aiter cannot be imported without "
            detail += '("ROCm version file not found"): install ROCm there, or set ROCM_PATH to where it is'
            yield Finding("warn", "ROCm", detail)
        elif not (self.root / "opt/rocm/bin/hipconfig").exists():
            detail = (
                "is not there, and aiter 0.1.7 calls it by this name, wherever ROCm is, when it compiles its decode "
            )
            detail += "kernel: sudo ln -s FOLDER /opt/rocm, where FOLDER is ROCm's"
            yield Finding("warn", "/opt/rocm/bin/hipconfig", detail)

    def _numa(self) -> Iterator[Finding]:
        if text(self.root / "proc/sys/kernel/numa_balancing") not in ("", "0"):
            detail = "is on, and unmaps pages to see who uses them; AMD's guides switch it off: "
            yield Finding("warn", "NUMA balancing", f"{detail}sudo sysctl kernel.numa_balancing=0")

    def _power(self, gpus: Sequence[Gpu]) -> Iterator[Finding]:
        capped = []
        for gpu in gpus:
            for folder in (self.root / f"sys/class/drm/renderD{gpu.render}/device/hwmon").glob("hwmon*"):
                cap, usual = (text(folder / name) for name in ("power1_cap", "power1_cap_default"))
                if cap.isdigit() and usual.isdigit() and int(cap) < int(usual):
                    capped.append(f"renderD{gpu.render} has {int(cap) // 10**6} W of {int(usual) // 10**6} W")
        if capped:
            yield Finding("warn", "power cap", f"{capped[0]}{_more(capped)}: sudo rocm-smi --resetpoweroverdrive")


def _computes(pci: Path) -> bool:
    return text(pci / "vendor") == AMD and text(pci / "class").startswith(COMPUTE_CLASSES)


def _more(several: Sequence[str]) -> str:
    return f" (and {len(several) - 1} more)" if len(several) > 1 else ""


def _assigned(source: str, name: str) -> str:
    """The text that a line of Python gives a name, or ""."""
    found = re.search(rf"^{name}\b[^=\n]*= *['\"]([^'\"]*)['\"]", source, re.MULTILINE)
    return found[1] if found else ""
