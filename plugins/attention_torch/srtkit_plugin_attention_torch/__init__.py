"""srtkit plugin `srtkit-plugin-attention-torch`."""
