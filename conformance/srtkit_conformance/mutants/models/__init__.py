"""Wrong models, one fault each, and legal ones that work differently."""

MODULES = ("planning", "filling", "running", "legal")
