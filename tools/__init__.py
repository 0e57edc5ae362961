"""Development tools; run as `python -m tools.NAME` from the top folder. Nothing here is published."""
