"""Checks that every relative link and every anchor in the Markdown files leads somewhere.

Knows Markdown links and GitHub's way of making anchors from headings. Does not fetch anything: links to
other hosts are not followed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.dists import ROOT

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
_NOT_OURS = {".git", ".venv", "dist", "build"}


def markdown_files(root: Path) -> Iterator[Path]:
    """Every Markdown file below `root` that belongs to the repository."""
    for path in sorted(root.rglob("*.md")):
        if _NOT_OURS.isdisjoint(path.relative_to(root).parts):
            yield path


def anchors(text: str) -> set[str]:
    """The anchors of a page: its headings, lower case, punctuation dropped, spaces as hyphens."""
    plain = (heading.replace("`", "").lower() for heading in _HEADING.findall(_FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def broken_links(path: Path) -> Iterator[str]:
    """The targets in one file that lead nowhere."""
    text = path.read_text("utf-8")
    for target in _LINK.findall(_CODE.sub("", _FENCE.sub("", text))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        page = (path.parent / name) if name else path
        missing_anchor = anchor and page.suffix == ".md" and page.exists() and anchor not in anchors(page.read_text())
        if not page.exists() or missing_anchor:
            yield target


def main(root: Path = ROOT) -> int:
    """Prints each broken link as `file: target`; 1 if there is one."""
    found = [(path.relative_to(root), target) for path in markdown_files(root) for target in broken_links(path)]
    for path, target in found:
        print(f"{path}: {target} leads nowhere", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
