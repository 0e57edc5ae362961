"""Checks of attention backends. Each declared yes must work; each no must be refused, never be wrong numbers."""

MODULES = ("layout", "refusals", "numerics", "features", "steps", "memory", "parts", "capture")
