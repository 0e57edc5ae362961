"""srtkit plugin `srtkit-plugin-transport-inproc`."""
