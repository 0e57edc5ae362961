"""srtkit plugin `srtkit-plugin-loader-dummy`."""
