"""What the command does."""

from __future__ import annotations

from srtkit.spec.errors import ConfigError


def greet(name: str) -> int:
    """Prints the greeting and returns exit code 0. Raises `ConfigError` for a name without letters."""
    if not name.strip():
        raise ConfigError("srt my-plugin", "there is nobody to greet", "name somebody: --to NAME")
    print(f"hello, {name}")
    return 0
