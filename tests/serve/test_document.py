"""docs/http.md against the fields, codes and calls it lists."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from srtkit.serve.native import GenerateFields

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "http.md").read_text("utf-8")


def section(heading: str) -> str:
    return DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_parameter_has_its_row() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", section("Parameters of a generation"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(GenerateFields.__struct_fields__)


def test_every_code_of_an_error_is_listed() -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "core" / "srtkit" / "serve").glob("*.py")]
    codes = {
        code
        for text in sources
        for code in re.findall(r'code(?:: str)? = ?"(\w+)"|code="(\w+)"', text)
        for code in code
    }
    missing = {code for code in codes if code and not re.search(rf"\b{code}\b", section("Errors"))}
    assert len(codes) > 10
    assert not missing


def test_every_call_of_the_engine_is_listed() -> None:
    from srtkit import Engine

    calls = {name for name, value in inspect.getmembers(Engine) if callable(value) and not name.startswith("_")}
    assert {name for name in calls if not re.search(rf"\b{name}\b", section("In one process"))} == set()
