"""What the stranger's proof rests on: a command that ends otherwise is a fault, and edits are undone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.fresh_env import FreshEnv
from tools.serve_from_wheels import Failed
from tools.stranger_faults import FAULTS, SLOW
from tools.workshop import Workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """A repository with one file of a package and one of its own, in this test's own environment."""
    (tmp_path / "venv").symlink_to(sys.prefix)
    shop = Workshop(FreshEnv(tmp_path), "ops", "mine")
    (shop.folder / "srtkit_plugin_ops_mine").mkdir(parents=True)
    (shop.folder / "srtkit_plugin_ops_mine" / "__init__.py").write_text("a = 1\na = 1\n")
    (shop.folder / "README.md").write_text("hello\n")
    shop.git("init", "--quiet")
    shop.git("add", "--all")
    shop.git("commit", "--quiet", "--message", "one")
    return shop


def test_edits_of_both_places_are_undone(shop: Workshop) -> None:
    shop.edit("__init__.py", "a = 1", "a = 2")
    shop.edit("README.md", "hello", "bye")
    assert (shop.folder / "srtkit_plugin_ops_mine" / "__init__.py").read_text() == "a = 2\na = 1\n"
    shop.restore()
    assert shop.git("status", "--porcelain") == ""
    with pytest.raises(AssertionError, match="has no 'a = 3'"):
        shop.edit("__init__.py", "a = 3", "")


def test_a_command_must_end_as_it_is_said_to(shop: Workshop) -> None:
    say = ["python", "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"]
    assert shop.met(3, say, "out", "err") == "out\nerr\n"
    with pytest.raises(Failed, match=r"ended with 3, not with 0:\nout\nerr"):
        shop.met(0, say, "out")
    with pytest.raises(Failed, match=r"ended with 3, not with 3 and 'word':\nout"):
        shop.met(3, say, "out", "word")
    with pytest.raises(Failed, match="did not end within"):
        shop.met(0, ["python", "-c", "import time; time.sleep(60)"], seconds=0.5)


def test_there_are_ten_faults_and_the_sister_has_some() -> None:
    assert len({fault.__doc__ for fault in FAULTS}) == len(FAULTS) == 10
    assert set(FAULTS) > SLOW
