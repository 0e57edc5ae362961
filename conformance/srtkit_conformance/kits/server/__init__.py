"""What the checks through `srt serve` share: combinations of plugins, the model, a visit to a server, and a stay."""
