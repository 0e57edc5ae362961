"""What checks of page stores share."""
