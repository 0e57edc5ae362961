"""What the checks of level 3 share: combinations of plugins, the model they serve, and a visit to `srt serve`."""
