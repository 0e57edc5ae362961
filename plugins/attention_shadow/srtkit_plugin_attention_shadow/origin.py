"""Where an object came from, by the metadata of what is installed: plugin, distribution, version; and this machine."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

import torch

from srtkit.spec.versions import CONTRACTS
from srtkit_plugin_attention_shadow.dump import Origin

VERSIONS = ("srtkit-core", "srtkit-plugin-attention-shadow", "torch", "triton", "numpy")


def origin_of(built: object, kind: str) -> Origin:
    """The plugin whose package defines the object's class. Without one in the metadata: the module itself."""
    return _of_module(type(built).__module__, kind)


@cache
def _of_module(module: str, kind: str) -> Origin:
    package = module.partition(".")[0]
    for entry in metadata.entry_points(group=f"srtkit.{kind}.v{CONTRACTS[kind].major}"):
        if entry.module.partition(".")[0] == package and entry.dist:
            return Origin(f"{kind}:{entry.name}", entry.dist.name, entry.dist.version)
    return Origin(f"{kind}:{package}", module, "?")


def versions() -> dict[str, str]:
    """Of what a result depends on, as far as it is installed."""
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def device_name(device: torch.device) -> str:
    """The device as its maker calls it."""
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"{device.type} {platform.machine()}"
