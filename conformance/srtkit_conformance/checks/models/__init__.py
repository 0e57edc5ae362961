"""Checks of models: what is planned, how parameters are filled, and steps on a small model with random weights."""

MODULES = ("planning", "filling", "steps", "inputs", "numbers")
