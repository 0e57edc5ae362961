"""Wrong transports, one fault each, and legal ones that work differently."""

MODULES = ("inside", "between", "legal")
