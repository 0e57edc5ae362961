"""What the checks of operators share: cases (cases.py), arguments and right results (gold, tokens), calling (bench)."""
