"""srtkit plugin `srtkit-plugin-graph-eager`."""
