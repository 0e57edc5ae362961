"""What the checks of operators share: cases (cases.py), arguments and float64 results (gold.py), calling (bench.py)."""
