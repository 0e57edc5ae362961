"""The installed plugins of this repository under the same rules, and the quick start wired with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from srtkit.config.settings import load_settings
from srtkit.plugins.catalogue import OFFICIAL
from srtkit.plugins.loaded import load_wiring
from srtkit.plugins.registry import discover
from srtkit.plugins.wiring import wire
from srtkit_plugin_cpu_native import LIBRARY

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"

LOAD_ALL = """
import json, sys
from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover
from srtkit.spec.errors import SrtError
registry, faults = discover(), []
for part in json.loads(sys.argv[1]):
    try:
        load(registry.find(*part))
    except SrtError as error:
        faults.append(str(error))
print(json.dumps(faults))
"""


def test_every_official_plugin_is_installed_once_and_has_a_light_module() -> None:
    """A light module that imports torch is refused; one that does would hide it in the others."""
    parts = [part.split(":") for part in OFFICIAL]
    command = [sys.executable, "-c", LOAD_ALL, json.dumps(parts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_the_quickstart_file_wires_to_the_cpu_set() -> None:
    plan, facts, _ = wire(load_settings(QUICKSTART, environ={}), discover())
    assert facts.platform == "cpu"
    built = LIBRARY.exists()  # where there is a compiler
    assert (plan.degraded == ()) == built
    chosen: dict[str, list[str]] = {}
    for plugin in plan.plugins:
        chosen.setdefault(plugin.offer.kind, []).append(plugin.offer.name)
    assert chosen["platform"] == ["cpu"]
    assert chosen["attention"] == (["cpu-native", "torch"] if built else ["torch"])  # the first that covers the model
    assert chosen["ops"] == ["cpu-native", "cpu"]
    assert chosen["prefix_cache"] == ["radix"]
    assert chosen["graph_runner"][-1] == "eager"
    assert chosen["model_loader"] == ["gguf"]
    assert chosen["models"] == ["models"]
    assert len(load_wiring(plan).plugins) == len(plan.plugins)
