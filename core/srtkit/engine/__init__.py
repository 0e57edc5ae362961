"""The engine: step plans → device work → sampled tokens. Importing this package imports no torch."""
