"""What checks of a kind share: how to set a plugin up, and independent references."""
