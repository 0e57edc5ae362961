"""The importable site folder of the plugin tests."""

from tests.plugins.conftest import site

__all__ = ["site"]
