"""What `srt cache show` does, in order."""

from __future__ import annotations

import argparse
import io
import json
import re

from rich.console import Console

from srtkit.spec.errors import ConfigError
from srtkit_plugin_cli_cache.client import ask
from srtkit_plugin_cli_cache.draw import drawing

PICTURE_COLUMNS = 118
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # from the net; a picture shows without them


def show(args: argparse.Namespace) -> int:
    """Ask, and draw or print. Raises `SrtError` when there is no answer, or the picture cannot be written."""
    answer = ask(args.url, args.limit, args.api_key)
    if args.json:
        print(json.dumps(answer, indent=1, ensure_ascii=False))
        return 0
    Console(highlight=False).print(drawing(answer))
    if args.svg is not None:
        # With a width of its own, whatever the terminal is.
        picture = Console(file=io.StringIO(), record=True, width=PICTURE_COLUMNS, highlight=False, force_terminal=True)
        picture.print(drawing(answer))
        svg = _FONTS.sub("", picture.export_svg(title="srt cache show"))
        try:
            args.svg.write_text(svg, "utf-8")
        except OSError as error:
            raise ConfigError(f"--svg {args.svg}", str(error), "name a file that can be written") from error
    return 0
