"""The toy installation and the command line of core's own tests."""

from __future__ import annotations

from tests.cli.conftest import site, srt

__all__ = ["site", "srt"]
