"""Checks of recurrent backends. Each declared yes must work; each no must be refused, never be wrong numbers."""

MODULES = ("refusals", "numerics", "steps", "states", "memory", "capture")
