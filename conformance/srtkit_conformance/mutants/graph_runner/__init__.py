"""Wrong graph runners, one fault each, and legal ones that work differently."""

MODULES = ("declared", "running", "capturing", "legal")
"""`simple` holds what they are made of."""
