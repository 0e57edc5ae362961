"""Every skeleton, copied under another name and installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from srtkit_conformance.author import skeleton
from tests import overlay

NAME = "odd-name"
"""Two words, so that each of its three spellings differs."""


@dataclass(frozen=True)
class Made:
    """The copies by kind, and the environment that they are installed in."""

    folders: Mapping[str, Path]
    overlay: overlay.Overlay


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp("skeletons")
    folders = {kind: skeleton.create(kind, NAME, place / "made") for kind in skeleton.kinds()}
    installed = overlay.make(place)
    installed.install(*folders.values())
    return Made(folders, installed)
