"""Checks of model loaders: descriptions, weights and slices, what is refused, and what closing leaves."""

MODULES = ("describing", "reading", "refusing", "damage", "closing")
