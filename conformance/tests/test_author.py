"""`srt plugin new` writes nothing that it should not, and says why."""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from srtkit.spec.errors import ConfigError
from srtkit_conformance.author import skeleton, srtkit_cli
from srtkit_conformance.author.skeleton import TEMPLATES, create, kinds

CONFORMANCE = Path(__file__).parents[1]


def srt_plugin(*arguments: object) -> int:
    command = srtkit_cli()
    parser = argparse.ArgumentParser(prog=f"srt {command.name}")
    command.configure(parser)
    return command.run(parser.parse_args([str(one) for one in arguments]))


def test_the_folder_is_named_as_those_of_the_house(tmp_path: Path) -> None:
    folder = create("prefix_cache", "my_chip2", tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b" / "cache_my_chip2"
    assert 'name = "srtkit-plugin-cache-my-chip2"' in (folder / "pyproject.toml").read_text()
    assert "class MyChip2Cache" in (folder / "srtkit_plugin_cache_my_chip2" / "cache.py").read_text()
    assert '"prefix_cache:my-chip2", "--level", "1"' in (folder / "tests" / "test_conformance.py").read_text()


def test_what_kinds_share_comes_after_what_is_their_own(tmp_path: Path) -> None:
    readme = (create("transport", "wire", tmp_path) / "README.md").read_text()
    places = [readme.index(words) for words in ("# srtkit-plugin-transport-wire", "## Prove it", "## Licence")]
    assert places == sorted(places)
    assert "## Prove it" not in (create("cli", "tool", tmp_path) / "README.md").read_text()


def test_a_kind_without_checks_of_its_own_is_tested_at_level_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "has_own_checks", lambda kind: kind != "ops")
    test = create("ops", "fast", tmp_path) / "tests" / "test_conformance.py"
    assert '"ops:fast", "--level", "0"' in test.read_text()


@pytest.mark.parametrize("name", ["", "My", "9lives", "a--b", "-a", "a b", "../a", "a.b"])
def test_a_name_that_would_not_work_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no plugin name"):
        create("attention", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = skeleton._files

    def half(kind: str) -> Iterator[tuple[str, str]]:
        yield next(iter(whole(kind)))
        raise OSError("no space left on device")

    monkeypatch.setattr(skeleton, "_files", half)
    with pytest.raises(OSError, match="no space left"):
        create("attention", "mychip", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_an_official_plugin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="attention:torch is srtkit-plugin-attention-torch"):
        create("attention", "torch", tmp_path)
    assert create("ops", "torch", tmp_path).is_dir()


@pytest.mark.parametrize("kind", ["cache", "teapot", "..", "_every", ""])
def test_a_kind_without_a_skeleton_is_refused_with_those_there_are(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match="kinds: platform, attention, "):
        create(kind, "mychip", tmp_path)


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "cli_hi").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        create("cli", "hi", tmp_path)
    assert list((tmp_path / "cli_hi").iterdir()) == []


@pytest.mark.parametrize(("kind", "prove"), [("ops", "srt conformance run ops:fast"), ("cli", "srt fast --help")])
def test_it_prints_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, prove: str) -> None:
    assert srt_plugin("new", kind, "fast", "--dest", tmp_path) == 0
    said = capsys.readouterr().out
    assert f"pip install --editable {tmp_path / f'{kind}_fast'}\n" in said
    assert f"  {prove}\n" in said


def test_the_light_module_is_light() -> None:
    code = "import sys, srtkit_conformance.author; print({'pytest', 'hypothesis', 'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_wheel_holds_every_skeleton(tmp_path: Path) -> None:
    """A wheel follows the link of the checkout; what it holds is what this checkout would copy."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    subprocess.run([*pip, "--no-deps", "--wheel-dir", str(tmp_path), str(CONFORMANCE)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    prefix = "srtkit_conformance/templates/"
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix(prefix): archive.read(name) for name in archive.namelist() if name.startswith(prefix)}
    files = [path for path in TEMPLATES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert held == {path.relative_to(TEMPLATES).as_posix(): path.read_bytes() for path in files}
    assert {name.partition("/")[0] for name in held} == {*kinds(), "_certified", "_every"}
