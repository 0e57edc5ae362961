"""Checks of prefix caches: identity of prefixes, leases, pages, windows, snapshots, resets, declarations, traffic."""

MODULES = ("identity", "leases", "pages", "windows", "snapshots", "resets", "declared", "outline", "loads", "traffic")
