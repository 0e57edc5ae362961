"""`srt doctor` on machines made of files that have one fault each: it is found, with its remedy, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plugins.platform_rocm.tests.machine import write_machine
from srtkit.spec.platform import Finding
from srtkit_plugin_platform_rocm.findings import Machine
from srtkit_plugin_platform_rocm.topology import NODES


def found(root: Path, may: Callable[[Path], bool] = lambda path: True, **environment: str) -> list[Finding]:
    return list(Machine({"PATH": "", **environment}, root, root / "torch/version.py", may).findings())


def test_a_machine_in_order(tmp_path: Path) -> None:
    write_machine(tmp_path, gpus=8)
    assert [tuple(one) for one in found(tmp_path)] == [
        ("ok", "AMD GPU", "8 x AMD Instinct MI300X (gfx942)"),
        ("ok", "torch for ROCm", "2.13.0+rocm7.1, HIP 7.1.25424"),
        ("ok", "ROCm", "7.1.0-38 in /opt/rocm"),
    ]


def test_a_machine_without_amd_gpus(tmp_path: Path) -> None:
    assert [tuple(one) for one in found(tmp_path, HIP_VISIBLE_DEVICES="7")] == [("ok", "AMD GPU", "none is here")]


@pytest.mark.parametrize(
    ("variables", "verdict", "subject", "words"),
    [
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, "warn", "CUDA_VISIBLE_DEVICES", "HIP follows"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "warn", "CUDA_VISIBLE_DEVICES", "use HIP_VISIBLE_DEVICES"),
        (
            {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0"},
            "warn",
            "HIP_VISIBLE_DEVICES",
            "within the 2 GPUs",
        ),
        ({"HIP_VISIBLE_DEVICES": "0,4"}, "fail", "HIP_VISIBLE_DEVICES", "names GPU 4, and there are 4"),
        ({"ROCR_VISIBLE_DEVICES": "9"}, "fail", "ROCR_VISIBLE_DEVICES", "names GPU 9, and there are 4"),
        ({"HIP_VISIBLE_DEVICES": ""}, "fail", "HIP_VISIBLE_DEVICES", "hides every GPU"),
        ({"HIP_VISIBLE_DEVICES": "-1"}, "fail", "HIP_VISIBLE_DEVICES", "hides every GPU"),
    ],
)
def test_variables(tmp_path: Path, variables: dict[str, str], verdict: str, subject: str, words: str) -> None:
    write_machine(tmp_path, gpus=4)
    (fault,) = faults(found(tmp_path, **variables))
    assert (fault.verdict, fault.subject) == (verdict, subject)
    assert words in fault.detail


def test_a_list_within_a_list_that_is_shorter(tmp_path: Path) -> None:
    write_machine(tmp_path, gpus=4)
    both = {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3"}
    warned, failed = faults(found(tmp_path, **both))
    assert warned.verdict == "warn"
    assert failed.detail.startswith("names GPU 2, and there are 2, from 0 on")


def test_variables_in_order_are_not_mentioned(tmp_path: Path) -> None:
    write_machine(tmp_path, gpus=4)
    for variables in ({"HIP_VISIBLE_DEVICES": "3,0"}, {"ROCR_VISIBLE_DEVICES": "GPU-4b2c1a9f8d3e6f7a"}):
        assert faults(found(tmp_path, **variables)) == []


@pytest.mark.parametrize(
    ("files", "verdict", "subject", "words"),
    [
        ({"dev/kfd": None}, "fail", "/dev/kfd", "sudo modprobe amdgpu; in a container: docker run --device=/dev/kfd"),
        ({f"{NODES}/1/properties": None}, "fail", "AMD GPU", "shows this process none"),
        ({"opt/rocm/bin/hipcc": None}, "warn", "hipcc", "or set ROCM_PATH"),
        (
            {"opt/rocm/.info/version": None, "opt/rocm/bin/hipconfig": None},
            "warn",
            "ROCm",
            "ROCm version file not found",
        ),
        ({"proc/sys/kernel/numa_balancing": "1\n"}, "warn", "NUMA balancing", "sysctl kernel.numa_balancing=0"),
        (
            {"sys/class/drm/renderD128/device/hwmon/hwmon0/power1_cap": "500000000\n"},
            "warn",
            "power cap",
            "renderD128 has 500 W of 750 W: sudo rocm-smi --resetpoweroverdrive",
        ),
        ({"torch/version.py": "__version__ = '2.13.0+cpu'\nhip = None\n"}, "fail", "torch for ROCm", "without ROCm"),
        ({"torch/version.py": None}, "fail", "torch for ROCm", "is not installed"),
    ],
)
def test_one_fault(tmp_path: Path, files: dict[str, str | None], verdict: str, subject: str, words: str) -> None:
    write_machine(tmp_path, gpus=1)
    for name, content in files.items():
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    (fault,) = faults(found(tmp_path))
    assert (fault.verdict, fault.subject) == (verdict, subject)
    assert words in fault.detail


def test_devices_that_this_user_may_not_open(tmp_path: Path) -> None:
    write_machine(tmp_path, gpus=2)
    (fault,) = faults(found(tmp_path, may=lambda path: path.name == "renderD128"))
    assert (fault.verdict, fault.subject) == ("fail", "/dev/kfd")
    assert "cannot be opened by this user (and 1 more): sudo usermod -aG render,video $USER" in fault.detail


def test_rocm_elsewhere(tmp_path: Path) -> None:
    write_machine(tmp_path, gpus=1)
    (tmp_path / "opt/rocm").rename(tmp_path / "opt/rocm-7.1.0")
    assert [one.subject for one in faults(found(tmp_path))] == ["hipcc", "ROCm"]
    for variables in ({"ROCM_PATH": "/opt/rocm-7.1.0"}, {"PATH": str(tmp_path / "opt/rocm-7.1.0/bin")}):
        (fault,) = faults(found(tmp_path, **variables))
        assert (fault.verdict, fault.subject) == ("warn", "/opt/rocm/bin/hipconfig")
        assert "sudo ln -s" in fault.detail
    (tmp_path / "opt/rocm").symlink_to("rocm-7.1.0")
    assert faults(found(tmp_path)) == []


def faults(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.verdict != "ok"]
