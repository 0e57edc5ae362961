"""What the checks of model loaders share: small stored models of each form, and comparison without a model."""
