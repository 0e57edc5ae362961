"""Checks of platforms: what the descriptor says, memory, streams and events, graphs, and groups of one."""

MODULES = ("declared", "objects", "memory", "order", "graphs")
