"""Wrong page stores, one fault each, and legal ones that work differently."""

MODULES = ("wrong", "legal")
