"""srtkit: a serving runtime whose parts are plugins."""
