"""Every distribution is found, named as its folder says, installed, built and under the import rules."""

from __future__ import annotations

import subprocess
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from srtkit.spec.versions import CONTRACTS
from tools import dists, import_rules

ALL = dists.find()
PLUGINS = dists.plugins()
IDS = [dist.name for dist in PLUGINS]


def test_every_project_file_is_a_known_distribution() -> None:
    files = {
        path
        for path in dists.ROOT.rglob("pyproject.toml")
        if not any(part.startswith((".", "_")) or part == "frozen" for part in path.relative_to(dists.ROOT).parts)
    }
    assert files - {dists.ROOT / "pyproject.toml"} == {dist.folder / "pyproject.toml" for dist in ALL}


def test_core_comes_first() -> None:
    assert ALL[0].name == "srtkit-core"


def test_every_folder_under_plugins_is_a_distribution() -> None:
    folders = {path.name for path in (dists.ROOT / "plugins").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert folders == {dist.folder.name for dist in PLUGINS}


@pytest.mark.parametrize("dist", ALL, ids=lambda dist: dist.name)
def test_is_typed_installed_and_of_the_declared_version(dist: dists.Dist) -> None:
    assert (dist.folder / dist.package / "py.typed").exists()
    assert (dist.folder / dist.package / "__init__.py").exists()
    assert (dist.folder / "README.md").exists()
    assert (dist.folder / "LICENSE").read_bytes() == (dists.ROOT / "LICENSE").read_bytes()
    assert version(dist.name) == dist.project["version"]


def requirements(dist: dists.Dist) -> set[str]:
    return {Requirement(line).name for line in dist.project["dependencies"]}


@pytest.mark.parametrize("dist", PLUGINS, ids=IDS)
def test_names_follow_the_folder(dist: dists.Dist) -> None:
    assert dist.name == f"srtkit-plugin-{dist.folder.name.replace('_', '-')}"
    groups = {contract.group: contract.short for contract in CONTRACTS.values()}
    offered = [(groups[group], name) for group, names in dist.entry_points.items() for name in names]
    whole = dist.folder.name.replace("_", "-")
    of_its_kind = any(whole in (f"{short}-{name}".replace("_", "-"), short, name) for short, name in offered)
    of_a_family = all(f"{short}-{name}".startswith(f"{whole}-") for short, name in offered)
    of_several = {name for _, name in offered} == {dist.folder.name.replace("_", "-")}
    assert of_its_kind or of_a_family or of_several or not offered  # a library offers nothing


@pytest.mark.parametrize("dist", PLUGINS, ids=IDS)
def test_requires_core_and_is_in_a_set_or_required_by_what_is(dist: dists.Dist) -> None:
    assert "srtkit-core" in requirements(dist)
    sets = ALL[0].project["optional-dependencies"]
    if dist.entry_points:
        assert dist.name in {Requirement(line).name for lines in sets.values() for line in lines}
    else:
        assert any(dist.name in requirements(other) for other in PLUGINS)


def test_core_does_not_require_torch() -> None:
    assert "torch" not in {Requirement(line).name for line in ALL[0].project["dependencies"]}


def test_make_installs_every_distribution() -> None:
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", "env"], cwd=dists.ROOT, capture_output=True, text=True, check=True
    ).stdout
    (built,) = (line.split() for line in plan.splitlines() if " -m tools.build " in line)
    folders = [dist.folder.relative_to(dists.ROOT).as_posix() for dist in ALL]
    assert built[-len(folders) :] == folders
    assert f" install --quiet --no-compile --constraint constraints.txt {built[-len(folders) - 1]}/*.whl\n" in plan


def test_import_rules_cover_every_plugin() -> None:
    rules = import_rules.contracts(ALL, import_rules.core_modules())
    packages = [dist.package for dist in PLUGINS if dist.package not in import_rules.LOADERS]
    assert rules["core-knows-no-plugin"]["forbidden_modules"] == [*packages, *import_rules.LOADERS]
    assert rules["plugins-use-spec"]["source_modules"] == packages
    assert rules["plugins-are-independent"]["modules"] == packages
    for loader in import_rules.LOADERS:
        assert set(packages) <= set(rules[f"{loader}-stands-outside"]["forbidden_modules"])
