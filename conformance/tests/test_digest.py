"""The digest of a distribution's files: the same wherever it is installed, another after any change."""

from __future__ import annotations

from pathlib import Path

from conformance.tests.conftest import Install
from srtkit_conformance.digest import certificate_path, distribution_digest
from srtkit_conformance.kits.light import LightPlugin


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
    (package / "conformance-prefix_cache-toy.json").write_text("{}")
    assert distribution_digest("srtkit-toy") == before


def test_what_only_looks_like_a_certificate_counts(package: Path) -> None:
    before = distribution_digest("srtkit-toy")
    (package / "conformance-prefix_cache-other.json").write_text("{}")
    after = distribution_digest("srtkit-toy")
    (package / "inner").mkdir()
    (package / "inner" / "conformance-prefix_cache-toy.json").write_text("{}")
    assert len({before, after, distribution_digest("srtkit-toy")}) == 3


def test_a_certificate_lies_in_the_package(package: Path) -> None:
    assert certificate_path("srtkit-toy", "prefix_cache", "toy") == package / "conformance-prefix_cache-toy.json"


def test_a_plugin_that_is_one_file_has_one_too(install: Install) -> None:
    install(LightPlugin())
    assert len(distribution_digest("srtkit-toy")) == 64
    assert certificate_path("srtkit-toy", "prefix_cache", "toy") is None
