"""The `srt` command. `main` dispatches; every other module is one sub-command and is imported when typed."""
