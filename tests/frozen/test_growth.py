"""A plugin written against attention/1.0 outlives a minor of the contract, and what is new is refused by its name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from srtkit.spec.versions import CONTRACTS
from tests.frozen.growth import FEATURE, Grown, grow
from tests.live_server.tiny import make_model
from tools import api

FROZEN = Path(__file__).parent / "attention_1_0"
DIGEST = "891fe462eb4207c31c3df9f5168650a69dd664d8fc28f1b69e28d7a9c465736d"
SETTINGS = """
[model]
source = "{model}"

[platform]
use = "cpu"

[attention]
use = "first"

[ops]
use = ["cpu"]

[models]
use = ["{models}"]
"""


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    return grow(tmp_path_factory.mktemp("site"), FROZEN)


def test_it_is_as_it_was() -> None:
    total = hashlib.sha256()
    for path in sorted(FROZEN.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(f"{path.relative_to(FROZEN).as_posix()}\0".encode() + path.read_bytes())
    assert total.hexdigest() == DIGEST, "a frozen plugin is not edited: freeze another one beside it"


def test_the_growth_is_a_minor(grown: Grown) -> None:
    ours = CONTRACTS["attention"]
    versions = {**api.VERSIONS, "attention": (ours.major, ours.minor + 1)}
    parts = {part.name: part for part in api.parts(grown.site, versions=versions)}
    assert list(api.faults(list(parts.values()))) == []
    added = [str(one) for one in parts["attention"].since]
    assert f"attention.AttentionSpec.{FEATURE} was added" in added
    assert len(added) == 5


def test_it_keeps_the_grown_contract(grown: Grown, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = grown.srt("conformance", "run", "attention:first", "--level", 1, "--report", report)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    ours = CONTRACTS["attention"]
    assert found["level_reached"] == 1
    assert found["plugin"]["contract"] == "1.0"
    assert found["versions"]["core_contract"] == f"{ours.major}.{ours.minor + 1}"


def explained(grown: Grown, folder: Path, models: str) -> tuple[int, str]:
    """What `srt explain` says of a tiny model of that family, on the frozen backend."""
    settings = folder / "settings.toml"
    settings.write_text(SETTINGS.format(model=make_model(folder / "model"), models=models))
    done = grown.srt("explain", "--config", settings)
    return done.returncode, done.stdout + done.stderr


def test_a_layer_of_its_own_time_is_served(grown: Grown, tmp_path: Path) -> None:
    code, said = explained(grown, tmp_path, "models")
    assert code == 0, said
    assert "attention:first" in said


def test_a_feature_invented_later_is_refused_by_its_name(grown: Grown, tmp_path: Path) -> None:
    code, said = explained(grown, tmp_path, "sparse")
    assert code != 0
    assert f"attention:first: does not understand the feature {FEATURE}, which LlamaForCausalLM needs in layer" in said
