"""The line of every key, for all ways that TOML has to write one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from srtkit.config.origin import Origin, key_lines, paths_of

ROOT = Path(__file__).parents[2]
TEXT = '''\
top = 1

[a]           # a header
b = [
  "x",  # = not a key
  "[not a table]",
]
c = """
[not.a.table]
d = 1
"""
"quoted.key" = 1
e.f = { g = 1, h = 2 }

[a.options."x y"]
k = 'v'
[[list]]
item = 1
[[list]]
item = 2
'''


def test_every_key_has_its_line() -> None:
    assert key_lines(TEXT) == {
        ("top",): 1,
        ("a",): 3,
        ("a", "b"): 4,
        ("a", "c"): 8,
        ("a", "quoted.key"): 12,
        ("a", "e"): 13,
        ("a", "e", "f"): 13,
        ("a", "e", "f", "g"): 13,
        ("a", "e", "f", "h"): 13,
        ("a", "options"): 15,
        ("a", "options", "x y"): 15,
        ("a", "options", "x y", "k"): 16,
        ("list",): 17,
        ("list", "item"): 18,
    }


def test_a_text_without_keys() -> None:
    assert key_lines("") == {}
    assert key_lines("# only\n\n   # comments") == {}


@pytest.mark.parametrize("path", [ROOT / "pyproject.toml", *sorted(ROOT.glob("*/*.toml"))], ids=str)
def test_real_files_lose_no_key(path: Path) -> None:
    text = path.read_text("utf-8")
    assert set(paths_of(tomllib.loads(text))) <= key_lines(text).keys()


def test_the_most_specific_place_wins() -> None:
    origin = Origin({(): "f.toml", ("a",): "f.toml:1", ("a", "b"): "f.toml:2", ("a", "c"): "--set a.c"})
    assert origin.where(("a", "b", "x")) == "f.toml:2"
    assert origin.where(("a", "z")) == "f.toml:1"
    assert origin.where(("a", "c")) == "--set a.c"
    assert origin.where(("q",)) == "f.toml"
    assert Origin().where(("q",)) == "settings"
