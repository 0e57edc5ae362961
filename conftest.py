"""Settings for every test of this repository."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Tests share their cores: without it OpenMP's barriers spin through whole time slices (see platform_cpu).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# A shell without job control has what it starts in the background ignore Ctrl-C, and so would all servers of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, and no verdict that depends on how busy the machine is.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
