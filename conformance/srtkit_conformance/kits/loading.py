"""What was seen when a plugin was loaded in interpreters of its own: one or two, for all checks of loading."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from srtkit_conformance.capabilities import plain
from srtkit_conformance.check import Failed, expect
from srtkit_conformance.kits.light import LightPlugin
from srtkit_conformance.target import Target

SECONDS = 60.0
KEPT = "loading"
"""Where a target's `extra` keeps the observations."""


@dataclass
class Observed:
    """What separate processes saw, by the names that `probe` gives it. The second is started when it is asked for."""

    order: Path
    first: dict[str, Any]

    @cached_property
    def second(self) -> dict[str, Any]:
        """What another process saw of the same plugin."""
        return _probe(self.order, self.order.with_name("second.json"))

    def described(self) -> dict[str, Any]:
        """The first one's, if the descriptor could be had; else `Failed` with the reason."""
        problem = self.first["import"] or self.first["describe"]
        expect(not problem, f"its descriptor cannot be had: {problem}")
        return self.first


def observe(target: Target) -> Observed:
    """Load the target's plugin in a new interpreter with this one's import path, once a run.

    Raises `Failed` if one does not end well.
    """
    if KEPT not in target.extra:
        target.extra[KEPT] = _observe(target)
    observed: Observed = target.extra[KEPT]
    return observed


def _observe(target: Target) -> Observed:
    paths, kind, name = list(sys.path), target.kind, target.name
    if isinstance(target.descriptor, LightPlugin):
        target.descriptor.install(target.folder)
        paths, kind, name = [str(target.folder), *paths], "prefix_cache", target.descriptor.entry
    elif target.distribution:
        name = f"{target.distribution}:{target.name}"
    facts = {one.name: plain(getattr(target.facts, one.name)) for one in dataclasses.fields(target.facts)}
    order = target.folder / "order.json"
    order.write_text(json.dumps({"paths": paths, "kind": kind, "name": name, "facts": facts}))
    return Observed(order, _probe(order, target.folder / "first.json"))


def _probe(order: Path, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "srtkit_conformance.kits.probe", str(order), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Failed("loading did not end", limit=f"{SECONDS:g} s") from None
    if done.returncode or not out.exists():
        raise Failed(f"loading ended the process with {done.returncode}\n{done.stderr[-2000:]}")
    seen: dict[str, Any] = json.loads(out.read_bytes())
    return seen
