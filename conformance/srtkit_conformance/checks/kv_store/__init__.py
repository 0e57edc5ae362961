"""Checks of page stores: what comes back, how long calls take, and what other threads and processes see."""

MODULES = ("contents", "limits", "others")
