"""A command line over the plugins of a site folder alone, whatever else the environment has installed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from srtkit.cli.main import main
from tests.plugins.conftest import site
from tests.plugins.toys import Site

__all__ = ["site"]


@dataclass(frozen=True)
class Result:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def srt(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run `srt` in this process."""
    everything = importlib.metadata.distributions

    def only_here(**where: Any) -> Iterable[importlib.metadata.Distribution]:
        return everything(**{"path": [str(site.path)], **where})

    monkeypatch.setattr(importlib.metadata, "distributions", only_here)

    def run(*arguments: str) -> Result:
        code = main(arguments)
        printed = capsys.readouterr()
        return Result(code, printed.out, printed.err)

    return run
