"""Checks of operators: what is declared, each one's values, weights, and what a call leaves alone."""

MODULES = ("declared", "values", "weights", "experts", "calls")
