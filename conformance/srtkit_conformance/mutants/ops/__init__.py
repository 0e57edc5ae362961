"""Wrong operators, one fault each, and legal ones that work differently."""

MODULES = ("declared", "values", "weights", "calls", "legal", "tokens", "experts")
