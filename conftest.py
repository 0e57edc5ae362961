"""Settings for every test of this repository."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run, and no verdict that depends on how busy the machine is.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
