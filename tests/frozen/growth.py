"""A core whose attention contract has grown a minor, and a model family that uses what is new in it.

The growth is an edit of a copy of core's source, so that every process of a run sees it. Knows no pytest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.dists import ROOT

FEATURE = "sparse_topk"

ADDITIONS = (
    ("attention", '    component: str = "full"\n', f"    {FEATURE}: int = 0\n"),
    (
        "attention",
        '            "mla": self.mla is not None,\n',
        f'            "{FEATURE}": self.{FEATURE} > 0,\n',
    ),
    ("attention", "    store_rotated: Answer = NOT_DECLARED\n", "    sparse_decode: Answer = NOT_DECLARED\n"),
    ("attention", "    needs: Mapping[str, object] | None = None\n", "    hints: Mapping[str, object] | None = None\n"),
    ("attention", "    rotated: RotatedStore | None = None\n", "    selector: object | None = None\n"),
    (
        "attention",
        "    build: Callable[[AttentionBuild], AttentionBackend]\n",
        "    workspace: Callable[[AttentionSpec], int] | None = None\n",
    ),
)
"""A later minor: module, the lines behind which it has more, and what: fields of spec, capabilities, build, parts,
descriptor, and the name of a feature."""

MODELS = f'''"""A model family invented later: Llama with sparse attention."""

from dataclasses import replace

import srtkit_plugin_models as llama
from srtkit.spec.hookspecs import hookimpl


def plan(request):
    """Every layer looks at its best 64 tokens only."""
    dense = llama.srtkit_models().plan(request)
    layers = {{index: replace(spec, {FEATURE}=64) for index, spec in dense.attention.items()}}
    return replace(dense, attention=layers)


@hookimpl
def srtkit_models():
    """Offers `models:sparse`."""
    return replace(llama.srtkit_models(), plan=plan)
'''

MODELS_PROJECT = {
    "name": "srtkit-plugin-models-sparse",
    "version": "0.1.0",
    "requires-python": ">=3.11",
    "dependencies": ["srtkit-plugin-models"],
    "entry-points": {"srtkit.models.v1": {"sparse": "srtkit_sparse"}},
}


@dataclass(frozen=True)
class Grown:
    """An environment in which `site`, with the grown core, is found first."""

    site: Path

    def srt(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run `srt` to its end."""
        command = [sys.executable, "-m", "srtkit", *map(str, arguments)]
        path = {"PYTHONPATH": str(self.site), "PYTHONDONTWRITEBYTECODE": "1"}
        environment = {**os.environ, **path}
        return subprocess.run(
            command, cwd=self.site, env=environment, capture_output=True, text=True, timeout=110, check=False
        )


def grow(site: Path, plugin: Path) -> Grown:
    """Make the environment in `site`, an empty folder, with the frozen plugin of the folder `plugin` in it."""
    shutil.copytree(ROOT / "core" / "srtkit", site / "srtkit", ignore=shutil.ignore_patterns("__pycache__"))
    for module, behind, more in ADDITIONS:
        path = site / "srtkit" / "spec" / f"{module}.py"
        source = path.read_text("utf-8")
        assert source.count(behind) == 1, f"{behind!r} is not in {module}.py once"
        path.write_text(source.replace(behind, behind + more), "utf-8")
    _raise_minor(site / "srtkit" / "spec" / "versions.py")
    project = tomllib.loads((plugin / "pyproject.toml").read_text("utf-8"))["project"]
    _install(site, project)
    for entries in project["entry-points"].values():
        for package in entries.values():
            shutil.copytree(plugin / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    _install(site, MODELS_PROJECT)
    (site / "srtkit_sparse.py").write_text(MODELS, "utf-8")
    return Grown(site)


def _raise_minor(path: Path) -> None:
    source = path.read_text("utf-8")
    pattern = r'Contract\("attention", (\d+), (\d+), "attention"\)'
    later, times = re.subn(
        pattern,
        lambda m: f'Contract("attention", {m[1]}, {int(m[2]) + 1}, "attention", frozenset({{"{FEATURE}"}}))',
        source,
    )
    assert times == 1
    path.write_text(later, "utf-8")


def _install(site: Path, project: Mapping[str, Any]) -> None:
    """The metadata of a distribution, as an installer makes it of what pyproject.toml says."""
    name, version = project["name"], project["version"]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {one}" for one in project["dependencies"]]
    (info / "METADATA").write_text("\n".join([*lines, ""]))
    groups = project["entry-points"].items()
    offers = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in one.items()) for group, one in groups]
    (info / "entry_points.txt").write_text("\n".join(offers))
    (info / "RECORD").write_text("")
