"""Checks of prefix caches: what identifies a prefix, leases, pages, resets, what is declared, and a state machine."""

MODULES = ("identity", "leases", "pages", "resets", "declared", "traffic")
