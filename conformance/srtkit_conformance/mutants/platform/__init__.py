"""Wrong platforms, one fault each, and legal ones that work differently."""

MODULES = ("declared", "memory", "order", "graphs", "legal")
