"""Tiny real distributions: a module and a `.dist-info` folder, written where a test wants them installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

DESCRIPTOR = {
    "platform": "PlatformDescriptor",
    "attention": "AttentionDescriptor",
    "recurrent": "RecurrentDescriptor",
    "prefix_cache": "PrefixCacheDescriptor",
    "kv_store": "KVStoreDescriptor",
    "graph_runner": "GraphRunnerDescriptor",
    "model_loader": "ModelLoaderDescriptor",
    "transport": "TransportDescriptor",
    "ops": "OpsDescriptor",
    "models": "ModelsDescriptor",
    "routes": "RoutesDescriptor",
}

LIGHT_MODULE = """
from dataclasses import MISSING, fields
from pydantic import BaseModel, ConfigDict
from srtkit.spec.capabilities import YES, Need
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.platform import PlatformDefaults
from srtkit.spec.{kind} import {descriptor} as Descriptor

class Options(BaseModel):
    "Options of the toy."
    model_config = ConfigDict(extra="forbid", frozen=True)
    size: int = 1
    inner: str = ""

def unused(*arguments):
    raise AssertionError("wiring must not call this")

PARTS = {{f.name: unused for f in fields(Descriptor) if f.default is MISSING and f.default_factory is MISSING}}
PARTS |= dict(contract="1.0", options=Options)
{extra}
@hookimpl
def srtkit_{kind}():
    return Descriptor(**PARTS)
"""

PLATFORM = """
FACTS = DeviceFacts(platform="toy", name="Toy 1", architecture="toy1", memory_bytes=1 << 30, dtypes={"bfloat16"})
PARTS |= dict(
    probe=lambda options: [FACTS] if options.size else [],
    assume=lambda architecture: FACTS if architecture == "toy1" else None,
    architectures=("toy1",),
    defaults=lambda facts: PlatformDefaults(plugins={"attention": ("torch",)}),
)
"""

NEEDS = """
PARTS |= dict(needs=lambda options: [Need("inner", *options.inner.split(":"), {"size": 7})] if options.inner else [])
"""


ANSWERS = """
from srtkit.spec import {kind} as kind
answers = lambda argument: {answers}
PARTS |= dict(capabilities=answers, fit=lambda wanted, keys: wanted) if "fit" in PARTS else dict(capabilities=answers)
"""

# What the check of a settings file asks of plugins, beyond wiring.
CAPABILITIES = {
    "attention": "kind.AttentionCapabilities(frozenset(), frozenset(), range(1), page_sizes=(16,))",
    "prefix_cache": "kind.CacheCapabilities(range(1, 65), frozenset())",
    "graph_runner": "kind.GraphRunnerCapabilities()",
    "transport": "kind.TransportCapabilities(processes=YES)",
}


def answers(kind: str) -> str:
    """For `extra`: what a plugin of this kind can do."""
    return ANSWERS.format(kind=kind, answers=CAPABILITIES[kind]) if kind in CAPABILITIES else ""


def light_module(kind: str, extra: str = "") -> str:
    """The source of a valid light module whose callables must not be called; `extra` may change PARTS."""
    extra = NEEDS + (PLATFORM if kind == "platform" else "") + dedent(extra)
    return LIGHT_MODULE.format(kind=kind, descriptor=DESCRIPTOR[kind], extra=extra)


@dataclass(frozen=True)
class Site:
    """A folder that plays site-packages."""

    path: Path

    def add(
        self, dist: str, entry_points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str], version: str = "1.0"
    ) -> None:
        """Install a distribution: entry points by group, module sources by name."""
        self.path.mkdir(exist_ok=True)
        sections = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in entry_points.items()
        ]
        info = self.path / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("\n".join(sections))
        (info / "RECORD").write_text("")
        for name, source in modules.items():
            (self.path / f"{name}.py").write_text(source)

    def plugin(self, kind: str, name: str, source: str | None = None, *, extra: str = "", major: int = 1) -> str:
        """Install a plugin `toy-<kind>-<name>` with a valid light module, or with `source`; returns its module."""
        module = f"toy_{kind}_{name.replace('-', '_')}"
        dist = f"toy-{kind}-{name}".replace("_", "-")
        text = light_module(kind, extra) if source is None else dedent(source)
        self.add(dist, {f"srtkit.{kind}.v{major}": {name: module}}, {module: text})
        return module

    def full_set(self, *, checkable: bool = False) -> None:
        """A plugin of every kind that a run needs, under the names that are the defaults; `checkable`: that answer."""
        for kind, name in (
            ("platform", "cpu"),
            ("attention", "torch"),
            ("prefix_cache", "radix"),
            ("graph_runner", "eager"),
            ("model_loader", "safetensors"),
            ("model_loader", "gguf"),
            ("transport", "zmq"),
            ("models", "models"),
            ("routes", "admin"),
        ):
            self.plugin(kind, name, extra=answers(kind) if checkable else "")

    def python(self, code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run code in a new interpreter that finds this folder first."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.path),
            "XDG_CACHE_HOME": str(self.path / "cache"),
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-c", dedent(code), *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def answer(self, code: str, *arguments: str) -> object:
        """Run code that prints one JSON value, and return it."""
        done = self.python(code, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
