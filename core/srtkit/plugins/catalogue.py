"""The official plugins by name, and what stands where neither file nor platform names one.

Data for remedies and defaults only: nothing here is imported, and third parties need no entry.
"""

import re

from srtkit.spec.versions import CONTRACTS

OFFICIAL: dict[str, tuple[str, ...]] = {
    "platform": ("cpu", "cuda", "fakedev", "rocm"),
    "attention": ("calibrate", "cpu-native", "fa3", "flashinfer", "shadow", "torch", "triton"),
    "recurrent": ("torch",),
    "prefix_cache": ("chunk", "events", "hiradix", "mamba", "radix", "radix-native"),
    "kv_store": ("files", "redis"),
    "graph_runner": ("cuda-breakable", "cuda-full", "cuda-piecewise", "eager"),
    "model_loader": ("dummy", "gguf", "safetensors"),
    "transport": ("inproc", "zmq"),
    "ops": ("cpu", "cpu-native", "triton"),
    "models": ("models",),
    "routes": ("admin", "cache"),
    "cli": ("bench", "cache", "calibrate", "chat", "conformance", "debug", "doctor", "plugin"),
}

# Kind → names when neither the file nor the platform says; other kinds then have none.
DEFAULTS: dict[str, tuple[str, ...]] = {
    "platform": ("cpu",),
    "prefix_cache": ("radix",),
    "graph_runner": ("eager",),
    "model_loader": ("safetensors", "gguf"),
    "transport": ("zmq",),
    "models": ("models",),
    "routes": ("admin",),
}

_ODD_NAMES = {name.removeprefix("cli-"): f"srtkit-plugin-{name}" for name in ("cli-calibrate", "cpu-native", "models")}
_ODD_NAMES |= dict.fromkeys(("conformance", "plugin"), "srtkit-conformance")
_ODD_NAMES |= dict.fromkeys(OFFICIAL["graph_runner"][:3], "srtkit-plugin-graph-cuda")

# How to install everything that serving on a CPU needs.
CPU_SET = "pip install 'srtkit-core[cpu]'"


def normal_name(name: str) -> str:
    """A plugin's or a distribution's name in the one form that is compared: lower case, hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def official_distribution(kind: str, name: str) -> str:
    """The distribution of an official plugin, or ""."""
    if name not in OFFICIAL.get(kind, ()):
        return ""
    return _ODD_NAMES.get(name, normal_name(f"srtkit-plugin-{CONTRACTS[kind].short}-{name}"))
