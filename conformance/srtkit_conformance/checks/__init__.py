"""The checks, one module (or folder) a kind."""
