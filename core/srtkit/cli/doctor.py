"""`srt doctor`: looks for what is wrong with this installation and says what to do about it.

Imports light modules one by one in child processes, so that a broken one harms nobody.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlparse

from srtkit.cli.common import table
from srtkit.plugins.registry import Offer, Registry, discover
from srtkit.spec.cli import CliCommand
from srtkit.spec.errors import SrtError

LIBRARIES = ("srtkit-core", "torch", "pluggy", "stevedore", "pydantic", "pydantic-settings", "huggingface_hub")
SHARED_MEMORY_MIB = 64
OPEN_FILES = 1024
FREE_DISK_MIB = 512


class Finding(NamedTuple):
    """One checked thing: `verdict` is ok, warn or fail."""

    verdict: str
    subject: str
    detail: str


def configure(parser: argparse.ArgumentParser) -> None:
    """`srt doctor` has no arguments."""
    parser.epilog = "Ends with 1 when something fails; warnings do not."


def run(arguments: argparse.Namespace) -> int:
    """Print all findings; 1 if one fails."""
    registry = discover()
    findings = [*_versions(), *_metadata(registry), *_editables(), *_script(), *_machine(), *_light_modules(registry)]
    print(table(findings))
    return int(any(finding.verdict == "fail" for finding in findings))


def _versions() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} at {sys.executable}")
    for name in LIBRARIES:
        try:
            yield Finding("ok", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("warn", name, "is not installed; a set brings it: pip install 'srtkit-core[cpu]'")


def _metadata(registry: Registry) -> Iterator[Finding]:
    yield from (Finding("warn", "metadata", fault) for fault in registry.faults)
    for kind, name in dict.fromkeys((offer.kind, offer.name) for offer in registry.offers):
        try:
            registry.find(kind, name)
        except SrtError as error:
            yield Finding("warn", error.part, f"{error.cause}; {error.remedy}")


def _editables() -> Iterator[Finding]:
    """Editable installs whose pyproject.toml has other entry points than were there at install time."""
    for dist in importlib.metadata.distributions():
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
        if not origin.get("dir_info", {}).get("editable"):
            continue
        file = Path(unquote(urlparse(origin["url"]).path)) / "pyproject.toml"
        if not file.is_file():
            yield Finding("warn", dist.metadata["Name"], f"is an editable install, but {file} is gone")
            continue
        tables = tomllib.loads(file.read_text("utf-8")).get("project", {}).get("entry-points", {})
        written = {(group, key, value) for group, entries in tables.items() for key, value in entries.items()}
        installed = {(e.group, e.name, e.value) for e in dist.entry_points if not e.group.endswith("_scripts")}
        if changed := sorted(written ^ installed):
            group, key, _ = changed[0]
            detail = f"{file} and the installed metadata differ in {group}: {key}; pip install -e {file.parent}"
            yield Finding("fail", dist.metadata["Name"], detail)


def _script() -> Iterator[Finding]:
    """The subtitle package `srt` installs a script of that name, too; the later install wins."""
    script = Path(sys.executable).with_name("srt")
    installed = {dist.metadata["Name"] for dist in importlib.metadata.distributions(name="srt")}
    if installed and not (script.is_file() and "srtkit" in script.read_text("utf-8", "replace")):
        yield Finding("warn", "srt", "the subtitle package of that name owns the script; `srtkit` is the same command")


def _machine() -> Iterator[Finding]:
    for folder, least in (("/dev/shm", SHARED_MEMORY_MIB), (tempfile.gettempdir(), FREE_DISK_MIB)):
        free = shutil.disk_usage(folder).free >> 20 if Path(folder).is_dir() else 0
        yield Finding("ok" if free >= least else "fail", folder, f"{free} MiB free, at least {least} are needed")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{files} (ulimit -n); 1,000 clients need more than {OPEN_FILES}"
    yield Finding("ok" if files >= OPEN_FILES else "warn", "open files", detail)


def _light_modules(registry: Registry) -> Iterator[Finding]:
    offers = [offer for offer in registry.offers if offer.speaks_ours]
    with ThreadPoolExecutor() as pool:
        yield from pool.map(_light_module, offers)


def _light_module(offer: Offer) -> Finding:
    """`srt plugins show` loads strictly: an import of torch and a replaced function fail it."""
    target = f"{offer.kind}:{offer.distribution}:{offer.name}"
    command = [sys.executable, "-m", "srtkit", "plugins", "show", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    detail = "loads" if done.returncode == 0 else done.stderr.strip().splitlines()[0]
    return Finding("ok" if done.returncode == 0 else "fail", offer.part, detail)


COMMAND = CliCommand("doctor", "Look for what is wrong with this installation.", configure, run)
