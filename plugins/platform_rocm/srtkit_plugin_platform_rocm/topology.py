"""What the kernel driver says of the GPUs of this machine, through the files in which rocm-smi reads it. No torch.

A container sees all nodes, and may read those of its own GPUs only. Nothing is started or taken of a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
NODES = "sys/class/kfd/kfd/topology/nodes"
FRAME_BUFFERS = (1, 2)
"""Types of memory banks that are the device's own: seen by the host, or not."""


@dataclass(frozen=True)
class Gpu:
    """One device as HIP counts them: a card, or a part of one. `node` is its number for the driver, `links` are the
    nodes that it reaches, `render` the minor of its /dev/dri/renderD….
    """

    node: int
    architecture: str
    device_id: int
    memory_bytes: int
    compute_units: int
    lds_kib: int
    wavefront: int
    render: int
    links: frozenset[int]


def visible(root: Path = ROOT) -> Sequence[Gpu]:
    """In the driver's order, which is HIP's; () without driver or GPU. Never raises."""
    folders = [path for path in (root / NODES).glob("*") if path.name.isdigit()]
    return tuple(_gpus(sorted(folders, key=lambda folder: int(folder.name))))


def linked(gpus: Sequence[Gpu]) -> bool:
    """Whether there are several, and every one reaches every other."""
    nodes = {gpu.node for gpu in gpus}
    return len(nodes) > 1 and all(nodes - {gpu.node} <= gpu.links for gpu in gpus)


def architecture(version: int) -> str:
    """The compiler's name of a `gfx_target_version`: 90402 is gfx942, 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _gpus(folders: Sequence[Path]) -> Iterator[Gpu]:
    for folder in folders:
        said = figures(folder / "properties")
        if not said.get("gfx_target_version"):  # a processor, or a GPU of somebody else
            continue
        banks = [figures(path) for path in folder.glob("mem_banks/*/properties")]
        links = [figures(path) for kind in ("io_links", "p2p_links") for path in folder.glob(f"{kind}/*/properties")]
        yield Gpu(
            node=int(folder.name),
            architecture=architecture(said["gfx_target_version"]),
            device_id=said.get("device_id", 0),
            memory_bytes=sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in FRAME_BUFFERS),
            compute_units=said.get("simd_count", 0) // max(1, said.get("simd_per_cu", 1)),
            lds_kib=said.get("lds_size_in_kb", 0),
            wavefront=said.get("wave_front_size", 0),
            render=said.get("drm_render_minor", 0),
            links=frozenset(link["node_to"] for link in links if "node_to" in link),
        )


def figures(path: Path) -> dict[str, int]:
    """A file with a name and a whole number on each line; {} for one that cannot be read."""
    pairs = (line.split() for line in text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def text(path: Path) -> str:
    """What a file of the kernel says, stripped; "" for one that is not there or not ours to read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
