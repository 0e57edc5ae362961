"""The digest of a distribution's files: the same wherever it is installed, another after any change."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.tests.conftest import Install
from srtkit_conformance.digest import CERTIFICATE, distribution_digest
from srtkit_conformance.kits.light import LightPlugin


@pytest.fixture
def package(tmp_path: Path, install: Install) -> Path:
    """The folder of an installed plugin that is a package."""
    install(LightPlugin())
    site = tmp_path / "site"
    folder = site / "srtkit_toy"
    folder.mkdir()
    (site / "srtkit_toy.py").rename(folder / "__init__.py")
    return folder


def test_any_change_of_a_file_changes_it(package: Path) -> None:
    digests = [distribution_digest("srtkit-toy")]
    (package / "heavy.py").write_text("1")
    digests.append(distribution_digest("srtkit-toy"))
    (package / "heavy.py").write_text("2")
    digests.append(distribution_digest("srtkit-toy"))
    (package / "heavy.py").rename(package / "light.py")
    digests.append(distribution_digest("srtkit-toy"))
    assert len(set(digests)) == 4
    assert all(len(one) == 64 for one in digests)


def test_bytecode_and_certificates_do_not_count(package: Path) -> None:
    before = distribution_digest("srtkit-toy")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "heavy.cpython-311.pyc").write_bytes(b"")
    (package / CERTIFICATE).write_text("{}")
    assert distribution_digest("srtkit-toy") == before


def test_a_plugin_that_is_one_file_has_one_too(install: Install) -> None:
    install(LightPlugin())
    assert len(distribution_digest("srtkit-toy")) == 64
