"""srtkit plugin `srtkit-plugin-platform-cpu`."""
