"""Wrong model loaders, one fault each, and legal ones that work differently."""

MODULES = ("reading", "sources", "legal")
