"""Each skeleton, once copied and renamed, is a plugin that is found, loaded and works, alone and with the others."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.author import skeleton
from srtkit_conformance.catalogue import KINDS as CERTIFIED
from tests.template.conftest import NAME, Made
from tools.dists import ROOT

KINDS = skeleton.kinds()
QUICK = ("prefix_cache", "platform")
"""One kind with checks of its own and one of any: the others keep their contract in `make full`."""

LOAD = """
import json, sys
from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover
registry, found = discover(), {}
for kind in json.loads(sys.argv[1]):
    offer = registry.find(kind, "odd-name")
    descriptor = load(offer)
    found[kind] = [offer.distribution, offer.value, descriptor.contract, type(descriptor).__module__]
print(json.dumps({"found": found, "torch": "torch" in sys.modules}))
"""


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_there_is_a_skeleton_for_every_kind() -> None:
    assert set(CONTRACTS) == set(KINDS)


def test_all_are_found_and_load_without_torch(made: Made) -> None:
    answer = made.overlay.answer(LOAD, KINDS)
    assert not answer["torch"]
    for kind in KINDS:
        short = CONTRACTS[kind].short
        assert answer["found"][kind] == [
            f"srtkit-plugin-{short.replace('_', '-')}-odd-name",
            f"srtkit_plugin_{short}_odd_name",
            CONTRACTS[kind].version,
            f"srtkit.spec.{kind}",
        ]


@pytest.mark.timeout(300)
def test_their_own_tests_pass(made: Made) -> None:
    said = own_tests(made, "--ignore-glob=*/test_conformance.py", *map(str, made.folders.values()))
    for folder in made.folders.values():
        assert f"PASSED {folder.name}/tests/test_odd_name.py::" in said


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.full) for kind in KINDS if kind != "cli"]
)
def test_they_keep_the_contract(made: Made, kind: str) -> None:
    """By their own test; the level that it asks for is the mandatory one as soon as the kind has such checks."""
    test = made.folders[kind] / "tests" / "test_conformance.py"
    assert own_tests(made, str(test)).count("PASSED") == 1


def own_tests(made: Made, *arguments: str) -> str:
    """What pytest prints of the tests of made plugins, all of which pass."""
    command = [made.overlay.python, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib"]
    place = made.folders["attention"].parent
    done = made.overlay.run([*command, "-q", "-rA", "--rootdir", str(place), *arguments], cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_its_repository_needs_is_there(made: Made, kind: str) -> None:
    folder, certified = made.folders[kind], kind in CERTIFIED
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    readme = (folder / "README.md").read_text()
    assert [line for line in readme.splitlines() if line.startswith("#")][-1] == "## Licence"
    assert (f"srt conformance run {kind}:{NAME}" in readme) == certified
    assert (folder / "waivers.toml").exists() == certified
    (workflow,) = (folder / ".github" / "workflows").glob("*.yml")
    steps = [step.get("run", "") for step in yaml.safe_load(workflow.read_text())["jobs"][workflow.stem]["steps"]]
    assert "pytest" in steps
    assert any(step.startswith(f"srt conformance run {kind}:{NAME} ") for step in steps) == certified
    extras = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"]["test"]
    assert ("srtkit-conformance" in {Requirement(line).name for line in extras}) == certified


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_skeletons_name_is_left(made: Made, kind: str) -> None:
    texts = {path: f"{path.relative_to(made.folders[kind])}\n{path.read_text()}" for path in files(made.folders[kind])}
    assert len(texts) >= 6
    assert not [path for path, text in texts.items() if re.search("my.?plugin", text, re.IGNORECASE)]


@pytest.mark.parametrize("kind", KINDS)
def test_it_imports_the_contract_and_what_it_requires(made: Made, kind: str) -> None:
    project = tomllib.loads((made.folders[kind] / "pyproject.toml").read_text())["project"]
    package = project["name"].replace("-", "_")
    allowed = {Requirement(line).name for line in project["dependencies"]} | sys.stdlib_module_names | {package}
    for path in (made.folders[kind] / package).rglob("*.py"):
        if path.name == "harness.py":  # imported by the suite alone
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        others = {name for name in names if name.split(".")[0] not in allowed}
        # pydantic comes with core: options are part of the contract.
        assert all(name == "pydantic" or name.startswith("srtkit.spec.") for name in others), (path, others)


def test_they_keep_the_style_under_another_name(made: Made) -> None:
    ruff = [str(Path(sys.executable).with_name("ruff")), "--config", str(ROOT / "pyproject.toml")]
    folders = [str(folder) for folder in made.folders.values()]
    for check in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run([*ruff, *check, *folders], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_they_are_typed(made: Made) -> None:
    mypy = [str(Path(sys.executable).with_name("mypy")), "--config-file", str(ROOT / "pyproject.toml")]
    packages = [str(path) for folder in made.folders.values() for path in folder.glob("srtkit_plugin_*")]
    done = subprocess.run(
        [*mypy, "--python-executable", made.overlay.python, *packages], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_command_runs(made: Made) -> None:
    done = made.overlay.run(["srt", NAME, "--to", "Ada"])
    assert (done.returncode, done.stdout) == (0, "hello, Ada\n")
    assert NAME in made.overlay.run(["srt", "--help"]).stdout
