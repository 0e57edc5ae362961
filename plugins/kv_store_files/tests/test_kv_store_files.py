"""Files that are damaged, too many, unfinished or unwritable; the suite tests what all stores share."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from srtkit.spec.errors import ConfigError
from srtkit.spec.kv_store import KEY_BYTES, KVStore, KVStoreBuild, Reply
from srtkit_conformance.inside import shortcomings
from srtkit_plugin_kv_store_files import FilesOptions, build
from srtkit_plugin_kv_store_files.form import HEADER_BYTES, content_of, header

KEYS = [bytes([number]) * KEY_BYTES for number in range(64)]
PAGE = bytes(range(256)) * 40


def store(path: Path, max_gib: float = 1.0) -> KVStore:
    return build(KVStoreBuild(FilesOptions(path=str(path), max_gib=max_gib)))


def blobs(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def test_it_keeps_the_contract() -> None:
    assert shortcomings("kv_store:files", level=1) == []


def test_a_change_of_any_byte_is_seen() -> None:
    file = header(KEYS[3], PAGE[:20]) + PAGE[:20]
    assert content_of(KEYS[3], file) == PAGE[:20]
    assert content_of(KEYS[4], file) is None
    for at in range(len(file)):
        assert content_of(KEYS[3], file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :]) is None
        assert content_of(KEYS[3], file[:at]) is None


def test_a_damaged_file_is_removed(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.put([(KEYS[0], PAGE)], 1.0)
    [file] = blobs(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    assert one.get([KEYS[0]], 1.0) == Reply((None,))
    assert blobs(tmp_path) == []


def test_those_not_used_for_longest_go(tmp_path: Path) -> None:
    one = store(tmp_path, max_gib=20 * len(PAGE) / 2**30)
    for number in range(15):
        one.put([(KEYS[number], PAGE)], 1.0)
        os.utime(tmp_path / KEYS[number].hex()[:2] / KEYS[number].hex(), (number, number))
    assert one.get([KEYS[0]], 1.0).values == (PAGE,)  # used now
    for number in range(15, 22):
        assert one.put([(KEYS[number], PAGE)], 1.0) == Reply((True,))
    assert sum(file.stat().st_size for file in blobs(tmp_path)) <= 20 * len(PAGE)
    there = one.exists(KEYS[:22], 1.0).values
    assert there[0] and not there[1] and not there[2] and all(there[5:])


def test_the_bound_counts_what_was_there_before_and_what_others_write(tmp_path: Path) -> None:
    first, second = (store(tmp_path, max_gib=20 * len(PAGE) / 2**30) for _ in range(2))
    for number in range(0, 64, 2):
        first.put([(KEYS[number], PAGE)], 1.0)
        second.put([(KEYS[number + 1], PAGE)], 1.0)
    # Each counts the other's files when its own reach the bound: together they are never above twice that.
    assert sum(file.stat().st_size for file in blobs(tmp_path)) <= 2 * 20 * len(PAGE)
    store(tmp_path, max_gib=5 * len(PAGE) / 2**30)
    assert sum(file.stat().st_size for file in blobs(tmp_path)) <= 5 * len(PAGE)


def test_a_blob_beyond_the_bound_is_an_error_and_evicts_nothing(tmp_path: Path) -> None:
    one = store(tmp_path, max_gib=3 * len(PAGE) / 2**30)
    one.put([(KEYS[0], PAGE)], 1.0)
    reply = one.put([(KEYS[1], PAGE * 4), (KEYS[2], PAGE)], 1.0)
    assert reply.values == (False, True)
    assert "larger than the bound" in reply.error
    assert one.exists(KEYS[:3], 1.0).values == (True, False, True)


def test_what_a_writer_left_goes_after_a_while_whatever_the_clock_says(tmp_path: Path) -> None:
    store(tmp_path)
    old, future, new = (tmp_path / "00" / f"{name}.unfinished" for name in ("old", "future", "new"))
    for file, seconds in ((old, -3600), (future, 3600 * 24 * 365), (new, 0)):
        file.write_bytes(b"part")
        moment = file.stat().st_mtime + seconds
        os.utime(file, (moment, moment))
    one = store(tmp_path)
    assert [file.exists() for file in (old, future, new)] == [False, False, True]
    assert one.put([(KEYS[0], PAGE)], 1.0).values == (True,)


def test_files_from_a_clock_that_jumped_are_as_good_as_others(tmp_path: Path) -> None:
    one = store(tmp_path)
    for number, moment in enumerate((0, 2**33)):
        one.put([(KEYS[number], PAGE)], 1.0)
        os.utime(tmp_path / KEYS[number].hex()[:2] / KEYS[number].hex(), (moment, moment))
    assert store(tmp_path).get(KEYS[:2], 1.0) == Reply((PAGE, PAGE))


FULL = """
import resource, sys
from pathlib import Path
from srtkit.spec.kv_store import KVStoreBuild
from srtkit_plugin_kv_store_files import FilesOptions, build
store = build(KVStoreBuild(FilesOptions(path=sys.argv[1])))
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))  # a write ends midway, with an error
reply = store.put([(bytes(32), bytes(1000)), (bytes([1] * 32), bytes(100_000)), (bytes([2] * 32), bytes(1000))], 5.0)
assert reply.values == (True, False, True), reply
assert reply.error.startswith("kv_store:files: ["), reply
assert len([file for file in Path(sys.argv[1]).rglob("*") if file.is_file()]) == 2
assert store.get([bytes([1] * 32)], 1.0).values == (None,)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a bound of file sizes")
def test_a_write_that_fails_midway_is_an_error_in_the_reply(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_full_disk_is_an_error_in_the_reply(tmp_path: Path) -> None:
    """The folder of a key leads to /dev/full, where no write has room."""
    one = store(tmp_path)
    folder = tmp_path / KEYS[5].hex()[:2]
    (folder / f"{one._token}-1.unfinished").symlink_to("/dev/full")
    reply = one.put([(KEYS[5], PAGE), (KEYS[6], PAGE)], 1.0)
    assert reply.values == (False, True)
    assert "No space left" in reply.error
    assert one.put([(KEYS[5], PAGE)], 1.0) == Reply((True,))


def test_a_folder_that_cannot_be_is_said_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another path"):
        store(tmp_path / "file" / "store")


def test_the_header_is_as_its_docstring_says() -> None:
    assert HEADER_BYTES == 8 + 32 + 8 + 16


def test_two_stores_of_one_process_share_a_folder(tmp_path: Path) -> None:
    """As two containers do whose processes have the same number: all that is told to be kept is there."""
    stores = [store(tmp_path) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for key in KEYS:
            kept = [*pool.map(lambda one, key=key: one.put([(key, PAGE)], 5.0), stores)]
            assert kept == [Reply((True,))] * 2
            assert stores[0].get([key], 5.0) == Reply((PAGE,))


def test_a_folder_that_it_makes_is_its_users_alone(tmp_path: Path) -> None:
    store(tmp_path / "made")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    (tmp_path / "given").mkdir(mode=0o755)
    store(tmp_path / "given")
    assert (tmp_path / "given").stat().st_mode & 0o777 == 0o755
