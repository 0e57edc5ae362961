"""Installed third-party distributions, put into another environment by hard links instead of pip.

Which they are follows from metadata alone, as for pip: what is required without being declared is not linked. Never
links our own distributions, whose files here are those of the checkout.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Container, Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.dists import find


def required(arguments: Iterable[str], *, deep: bool = True) -> list[Distribution]:
    """What `pip install` of these would bring, as far as it is installed here.

    `arguments` are requirements, or paths of wheels with or without extras; options are passed over. `deep`: with all
    that those require, and so on.
    """
    ours = {canonicalize_name(dist.name) for dist in find()}
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = list(_asked(arguments))
    while todo:
        dist, extras = todo.pop()
        name = canonicalize_name(dist.name)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name not in ours:
            found[name] = dist
        if deep:
            todo += _requirements(dist, extras, ours)
    return list(found.values())


def _asked(arguments: Iterable[str]) -> Iterator[tuple[Distribution, frozenset[str]]]:
    """Distributions and extras that a command line names."""
    for argument in arguments:
        path, _, extras = argument.removesuffix("]").partition(".whl")
        if path != argument:
            (wheel,) = distributions(path=[f"{path}.whl"])
            yield wheel, frozenset(extras.lstrip("[").split(",")) - {""}
        elif not argument.startswith("-"):
            yield from _installed(Requirement(argument))


def _requirements(
    dist: Distribution, extras: frozenset[str], left_out: Container[str]
) -> Iterator[tuple[Distribution, frozenset[str]]]:
    for line in dist.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if applies and canonicalize_name(requirement.name) not in left_out:
            yield from _installed(requirement)


def _installed(requirement: Requirement) -> Iterator[tuple[Distribution, frozenset[str]]]:
    try:
        yield distribution(requirement.name), frozenset(requirement.extras)
    except PackageNotFoundError:  # pip brings it, or says what is wrong
        return


def link(dists: Iterable[Distribution], site_packages: Path) -> None:
    """Link their files below `site_packages`, scripts left out; what is there is kept."""
    for dist in dists:
        for file in dist.files or ():
            if ".." in file.parts:
                continue
            here = Path(str(file.locate()))
            _link(here, site_packages / file)
            if here.suffix == ".py":  # RECORD does not say what was compiled later
                compiled = Path(importlib.util.cache_from_source(str(here)))
                if compiled.exists():
                    _link(compiled, (site_packages / file).parent / "__pycache__" / compiled.name)


def _link(here: Path, there: Path) -> None:
    if there.exists():
        return
    there.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(here, there)
    except OSError:  # another file system
        shutil.copy2(here, there)
