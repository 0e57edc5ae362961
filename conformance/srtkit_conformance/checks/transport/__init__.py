"""Checks of transports: what arrives, how long things wait, how ends close, and what happens when a process dies."""

MODULES = ("messages", "waiting", "ending", "processes")
