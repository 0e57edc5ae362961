"""Wrong prefix caches, one fault each, and legal ones that work differently."""

MODULES = ("identity", "leases", "pages", "mixed", "resets", "declared", "outline", "loads", "legal")
