"""A folder with the files of a machine: what amdgpu and the kernel say of MI300X cards, reduced to what is read."""

from __future__ import annotations

from pathlib import Path

from srtkit_plugin_platform_rocm.topology import NODES


def write_machine(
    root: Path,
    *,
    gpus: int,
    first: int = 1,
    version: int = 90402,
    device_id: int = 0x74A1,
    linked: bool = True,
) -> None:
    """GPUs as nodes from `first` on, beside a processor as node 0, with driver, devices, ROCm and its own torch."""
    _write(root / NODES / "0/properties", "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n")
    for number in range(gpus):
        node, minor = root / NODES / str(first + number), 127 + first + number
        _write(
            node / "properties",
            f"cpu_cores_count 0\nsimd_count 1216\nlds_size_in_kb 64\nwave_front_size 64\nsimd_per_cu 4\n"
            f"gfx_target_version {version}\nvendor_id 4098\ndevice_id {device_id}\ndrm_render_minor {minor}\n",
        )
        _write(node / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {192 << 30}\nflags 0\nwidth 8192\n")
        for other in range(gpus):
            if linked and other != number:
                _write(
                    node / f"io_links/{other}/properties", f"type 11\nnode_from {node.name}\nnode_to {first + other}\n"
                )
        pci = root / f"sys/bus/pci/devices/0000:{node.name}5:00.0"
        _write(pci / "vendor", "0x1002\n")
        _write(pci / "class", "0x120000\n")
        power = root / f"sys/class/drm/renderD{minor}/device/hwmon/hwmon{number}"
        _write(power / "power1_cap", "750000000\n")
        _write(power / "power1_cap_default", "750000000\n")
        _write(root / f"dev/dri/renderD{minor}", "")
    _write(root / "dev/kfd", "")
    _write(root / "proc/sys/kernel/numa_balancing", "0\n")
    _write(root / "opt/rocm/.info/version", "7.1.0-38\n")
    for program in ("hipcc", "hipconfig"):
        _write(root / "opt/rocm/bin" / program, "#!/bin/sh\n")
        (root / "opt/rocm/bin" / program).chmod(0o755)
    _write(root / "torch/version.py", "__version__ = '2.13.0+rocm7.1'\nhip: Optional[str] = '7.1.25424'\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
