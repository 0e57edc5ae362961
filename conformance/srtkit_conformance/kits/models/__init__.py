"""What the checks of models share: small configs and their plans (configs.py), operators and attention in plain torch
(operators.py, attention.py), a model with weights that runs steps (rig.py), the Llama family in float64 (gold.py)."""
