"""The answer of /cache as lines and a tree for a terminal. Knows rich, no HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

EXCERPT = 32
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def drawing(answer: Mapping[str, Any]) -> RenderableType:
    """Summary lines, and below them the prefixes, each a branch of what it extends."""
    return Group(*summary(answer), tree(answer))


def summary(answer: Mapping[str, Any]) -> Iterator[Text]:
    """How often the cache helped, then a line for every component and for every tier below the device."""
    rate = answer["hit_rate"]
    hits = "no prompts yet" if rate is None else f"{rate:.1%} of {answer['prompt_tokens']:,} prompt tokens were cached"
    yield Text(hits, style="bold")
    for name, one in answer["pages"].items():
        used = one["in_use"] + one["retiring"]
        yield Text.assemble(
            (f"{name:8}", "cyan"),
            f"{one['total']:,} pages: {used:,} in use, {one['cached']:,} cached ({one['pinned']:,} pinned), ",
            f"{one['free']:,} free",
        )
    for name, one in answer["tiers"].items():
        if name != "device":
            yield Text.assemble((f"{name:8}", "magenta"), ", ".join(_tier(one)))


def _tier(one: Mapping[str, int]) -> Iterator[str]:
    if not one.get("attached", 1):
        yield "detached"
    if "used" in one:
        size = f" ({_size(one['bytes'])})" if "bytes" in one else ""
        yield f"{one['used']:,} of {one['pages']:,} pages{size}" if "pages" in one else f"{one['used']:,} pages{size}"
    for name in ("written", "read", "misses", "failed"):
        if one.get(name):
            yield f"{one[name]:,} {name}"


def tree(answer: Mapping[str, Any]) -> Tree:
    """The prefixes, in the server's order: those used most come first."""
    shown, entries = len(answer["prefixes"]), answer["entries"]
    root = Tree(Text(f"{shown:,} of {entries:,} prefixes", style="dim"), guide_style="dim")
    branches: list[Tree] = []
    for one in answer["prefixes"]:
        above = branches[one["parent"]] if one["parent"] >= 0 else root
        branches.append(above.add(_label(one)))
    return root


def _label(one: Mapping[str, Any]) -> Text:
    """What it begins with, how long it is, how often it was found, who holds it, and where else it lies."""
    held = one["pins"]
    label = Text.assemble((_excerpt(one), "bold green" if held else "bold"))
    if one["namespace"] and one["parent"] < 0:
        label.append(f"  salt {one['namespace']}", "yellow")
    label.append(f"  {_count(one['tokens'], 'token')}", "cyan")
    pages = [_count(n, "page") if name == "full" else f"{n:,} {name}" for name, n in one["pages"].items()]
    label.append(f" · {' + '.join(pages)} · {_count(one['hits'], 'hit')}", "dim")
    if held:
        label.append(f" · held by {held:,}", "green")
    for tier, n in one["tiers"].items():
        label.append(f" · {tier} {n:,}", "magenta")
    return label


def _excerpt(one: Mapping[str, Any]) -> str:
    """Its first tokens on one line, without what a terminal would obey."""
    if one["text"] is None:
        text = " ".join(map(str, one["ids"]))
    else:
        text = "".join(char if char.isprintable() else "⏎" if char == "\n" else "·" for char in one["text"])
    cut = len(text) > EXCERPT or len(one["ids"]) < one["tokens"]
    return text[:EXCERPT] + "…" * cut


def _size(n: float) -> str:
    for unit in _UNITS[:-1]:
        if n < 1024:
            return f"{n:,.0f} {unit}"
        n /= 1024
    return f"{n:,.0f} {_UNITS[-1]}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"
