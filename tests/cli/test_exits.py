"""docs/errors.md against the classes and constants it lists."""

from __future__ import annotations

import errno
import re
import signal
from pathlib import Path

import pytest

from srtkit.cli.main import DISK_FULL, INTERRUPTED, OTHER_OS_ERROR, PORT_IN_USE, USAGE, os_error
from srtkit.spec import errors

DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"


def documented() -> dict[int, str]:
    """Code → name, of the table's rows."""
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert len({code for code, _ in rows}) == len(rows)
    return {int(code): name.strip() for code, name in rows}


def test_every_error_class_has_its_row_and_every_row_its_class() -> None:
    classes = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.SrtError) and value is not errors.RequestError
    }
    codes = {error.exit_code: error.__name__ for error in classes}
    assert len(codes) == len(classes), "two classes share an exit code"
    others = {
        0: "success",
        USAGE: "usage",
        PORT_IN_USE: "port in use",
        DISK_FULL: "disk full",
        OTHER_OS_ERROR: "system",
        INTERRUPTED: "Ctrl-C",
        128 + signal.SIGTERM: "SIGTERM",
    }
    assert codes.keys().isdisjoint(others)
    assert documented() == codes | others


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.EADDRINUSE, PORT_IN_USE, "server.port"),
        (errno.ENOSPC, DISK_FULL, "full at /there"),
        (errno.EDQUOT, DISK_FULL, "full"),
        (errno.EIO, OTHER_OS_ERROR, "/there"),
    ],
)
def test_os_errors_have_a_sentence_and_a_code(number: int, code: int, words: str) -> None:
    sentence, exit_code = os_error(OSError(number, "text of the system", "/there"))
    assert exit_code == code
    assert words in sentence


def test_a_full_disk_has_the_place_and_the_variable_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))

    def told(place: str | None) -> str:
        return os_error(OSError(errno.ENOSPC, "text of the system", place))[0]

    for folder, variable in (("temporary", "TMPDIR"), ("hub", "HF_HOME")):
        sentence = told(str(tmp_path / folder / "file"))
        assert f"full at {tmp_path}/{folder}/file" in sentence
        assert f"set {variable} ({tmp_path}/{folder}) to another folder" in sentence
        assert f"{variable} ({tmp_path}/{folder})" in told(None)
    assert "set " not in told("/elsewhere/file")
