"""Each import rule fails for the import it forbids, in a small copy of the house's layout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import import_rules
from tools.dists import Dist

CORE = Dist(Path("core"), {"name": "srtkit-core"})
FIRST = Dist(Path("plugins/cache_first"), {"name": "srtkit-plugin-cache-first", "dependencies": ["srtkit-core>=0.1"]})
SECOND = Dist(
    Path("plugins/cache_second"),
    {"name": "srtkit-plugin-cache-second", "dependencies": ["srtkit-core", "srtkit-plugin-cache-first>=0.1"]},
)
SUITE = Dist(Path("conformance"), {"name": "srtkit-conformance"})
SUITE_RULE = "srtkit_conformance imports no plugin and nothing that runs one"
PARTS = ("config", "engine", "plugins", "scheduler", "spec", "text")


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A core with its parts and two plugins, each module empty; `second` requires `first`."""
    for package in ("srtkit", *(f"srtkit/{part}" for part in PARTS), *(d.package for d in (FIRST, SECOND, SUITE))):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "srtkit/spec/layers.py").write_text("import torch\n")
    return tmp_path


def broken(house: Path) -> list[str]:
    """Names of the contracts that do not hold."""
    core = [f"srtkit.{part}" for part in PARTS if part != "spec"]
    done = import_rules.check(import_rules.render([CORE, FIRST, SECOND, SUITE], core), house)
    assert "Contracts:" in done.stdout, done.stdout + done.stderr
    found = re.findall(r"^(.+) BROKEN", done.stdout, re.MULTILINE)
    assert bool(found) == bool(done.returncode)
    return found


def test_what_is_allowed_passes(house: Path) -> None:
    (house / FIRST.package / "__init__.py").write_text("import torch\nimport srtkit.spec.layers\n")
    (house / SECOND.package / "__init__.py").write_text(f"import {FIRST.package}\n")
    (house / "srtkit/engine/__init__.py").write_text("import torch\nimport srtkit.spec\nimport srtkit.scheduler\n")
    (house / "srtkit/scheduler/__init__.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
    )
    (house / SUITE.package / "__init__.py").write_text("import srtkit.plugins\nimport srtkit.spec\nimport torch\n")
    assert broken(house) == []


@pytest.mark.parametrize(
    ("module", "imports", "rule"),
    [
        ("srtkit/engine", FIRST.package, "core imports no plugin"),
        ("srtkit/engine", SUITE.package, "core imports no plugin"),
        (SUITE.package, "srtkit.engine", SUITE_RULE),
        (SUITE.package, FIRST.package, SUITE_RULE),
        (FIRST.package, SUITE.package, "plugins import srtkit.spec and nothing else of core"),
        (FIRST.package, "srtkit.engine", "plugins import srtkit.spec and nothing else of core"),
        (FIRST.package, SECOND.package, "plugins do not import each other unless declared"),
        ("srtkit/spec", "srtkit.config", "srtkit.spec imports nothing of core outside itself"),
        ("srtkit/scheduler", "torch", "scheduler, text, config, discovery and spec import no torch"),
        ("srtkit/engine", "transformers", "transformers is a test's reference, never a dependency of core"),
    ],
)
def test_what_is_forbidden_fails(house: Path, module: str, imports: str, rule: str) -> None:
    (house / module / "__init__.py").write_text(f"def late():\n    import {imports}\n")
    assert broken(house) == [rule]


def test_core_modules_are_packages_and_files_without_spec(tmp_path: Path) -> None:
    core = tmp_path / "core/srtkit"
    for part in ("engine", "spec"):
        (core / part).mkdir(parents=True)
        (core / part / "__init__.py").touch()
    for name in ("__init__.py", "__main__.py", "api.py", "py.typed"):
        (core / name).touch()
    assert import_rules.core_modules(tmp_path) == ["srtkit.engine", "srtkit.api"]
