"""Processes of a run: the worker of a rank, and the launch of all of them."""
