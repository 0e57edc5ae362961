"""Wrong and legal attention backends, made by wrapping the reference's. `wrap` and `row_by_row` are what they share."""

MODULES = ("variants", "numbers", "pairs", "memory", "promises", "rotated")
