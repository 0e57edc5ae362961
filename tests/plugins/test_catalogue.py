"""The catalogue against the distributions of this repository."""

from __future__ import annotations

from srtkit.plugins.catalogue import CPU_SET, DEFAULTS, OFFICIAL, official_names
from srtkit.spec.versions import CONTRACTS
from tools.dists import find


def test_the_catalogue_names_exactly_the_plugins_of_this_repository() -> None:
    here = {
        f"{group.split('.')[1]}:{name}": dist.name
        for dist in find()
        for group, entries in dist.project.get("entry-points", {}).items()
        if group.startswith("srtkit.")
        for name in entries
    }
    assert here == OFFICIAL


def test_defaults_are_official_plugins_of_known_kinds() -> None:
    assert DEFAULTS.keys() <= CONTRACTS.keys()
    assert all(name in official_names(kind) for kind, names in DEFAULTS.items() for name in names)


def test_the_set_that_remedies_name_exists() -> None:
    core = next(dist for dist in find() if dist.name == "srtkit-core")
    sets = [f"pip install 'srtkit-core[{name}]'" for name in core.project["optional-dependencies"]]
    assert CPU_SET in sets
