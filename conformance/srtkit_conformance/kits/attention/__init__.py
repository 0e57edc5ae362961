"""Steps over poisoned pools, a float64 solution of them, and the gates: shared by all checks of attention backends."""
