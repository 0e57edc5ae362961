"""A runner of the toy checks, and the toy plugin of the kit where a test wants it installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from srtkit_conformance.catalogue import Suite
from srtkit_conformance.check import Check
from srtkit_conformance.cli import configure, run
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.light import LightPlugin
from srtkit_conformance.runner import Runner

TOYS = Suite(
    "prefix_cache", (f"{__package__}.toy_checks", f"{__package__}.toy_faults"), (f"{__package__}.toy_mutants",)
)

Install = Callable[[LightPlugin], None]
Srt = Callable[..., int]


@pytest.fixture
def toys() -> Suite:
    """The suite of toy checks and mutants."""
    return TOYS


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """Runs toy checks on a plugin that is always there."""
    subject = Subject("prefix_cache", "chunk", seed=7)
    return Runner(subject, TOYS, load_target(subject, TOYS, tmp_path), tmp_path)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs the toy plugin, `prefix_cache:toy`, for the test."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    yield lambda toy: toy.install(site)
    sys.modules.pop("srtkit_toy", None)


@pytest.fixture
def package(tmp_path: Path, install: Install) -> Path:
    """The folder of the toy plugin, installed as a package."""
    install(LightPlugin())
    site = tmp_path / "site"
    folder = site / "srtkit_toy"
    folder.mkdir()
    (site / "srtkit_toy.py").rename(folder / "__init__.py")
    return folder


@pytest.fixture
def srt() -> Srt:
    """`srt conformance` with the given arguments, in this process; returns the exit code."""

    def command(*arguments: object) -> int:
        parser = argparse.ArgumentParser()
        configure(parser)
        return run(parser.parse_args([str(one) for one in arguments]))

    return command


def toy(name: str, among: Sequence[Check] | None = None) -> Check:
    """A toy check by the end of its id."""
    (found,) = (one for one in among or TOYS.checks() if one.id == f"prefix_cache.toy_{name}")
    return found
