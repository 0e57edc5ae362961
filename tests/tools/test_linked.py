"""What is linked into a fresh environment: what metadata asks for, and nothing of the checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from hatchling.build import build_editable

from tools.build import build
from tools.dists import find
from tools.linked import link, required

PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "asks-for-things"
version = "1.0"
dependencies = ["httpx", "srtkit-core", "nobody-has-this", 'psutil; python_version < "3"']
optional-dependencies.more = ["jinja2"]
"""


def wheel(folder: Path) -> Path:
    """A wheel that asks for several things, built for work in place."""
    source = folder / "source"
    (source / "asks_for_things").mkdir(parents=True)
    (source / "asks_for_things" / "__init__.py").touch()
    (source / "pyproject.toml").write_text(PROJECT)
    build([source], folder / "wheels", build_editable)
    (built,) = (folder / "wheels").iterdir()
    return built


def names(*arguments: str, deep: bool = True) -> set[str]:
    return {dist.name.lower() for dist in required(arguments, deep=deep)}


def test_required_is_what_metadata_asks_for_here(tmp_path: Path) -> None:
    built = str(wheel(tmp_path))
    plain = names("--quiet", built)
    assert {"httpx", "httpcore", "certifi"} <= plain
    assert plain.isdisjoint({"jinja2", "psutil", "nobody-has-this"})
    assert names(f"{built}[more]") - plain == {"jinja2", "markupsafe"}
    assert names("jinja2", deep=False) == {"jinja2"}


def test_our_own_are_never_linked(tmp_path: Path) -> None:
    assert names(str(wheel(tmp_path)), *(dist.name for dist in find())).isdisjoint(dist.name for dist in find())


def test_what_is_linked_is_found_installed_and_works_without_more(tmp_path: Path) -> None:
    link(required(["jinja2"]), tmp_path)
    code = (
        "import importlib.metadata as m, json, sys; sys.path = [p for p in sys.path if 'site-packages' not in p];"
        f"sys.path.insert(0, {str(tmp_path)!r}); import jinja2;"
        "print(json.dumps([jinja2.__file__, jinja2.Template('{{ 6 * 7 }}').render(), m.version('jinja2')]))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    file, said, version = json.loads(done.stdout)
    assert Path(file).is_relative_to(tmp_path)
    assert (said, version) == ("42", required(["jinja2"], deep=False)[0].version)
    link(required(["jinja2"]), tmp_path)  # what is there is kept


def test_what_is_built_for_work_in_place_leads_to_its_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(tmp_path)) as archive:
        (path,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith(".pth"))
    assert Path(path.strip()) == tmp_path / "source"
