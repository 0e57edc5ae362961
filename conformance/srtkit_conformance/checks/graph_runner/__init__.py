"""Checks of graph runners: which shapes are captured, capturing them, and running steps."""

MODULES = ("declared", "running", "capturing", "cutting")
