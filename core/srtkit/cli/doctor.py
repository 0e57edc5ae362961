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
            hint = "comes with a set: pip install 'srtkit-core[cpu]'" if name == "torch" else "pip install srtkit-core"
            yield Finding("warn" if name == "torch" else "fail", name, f"is not installed; {hint}")


def _metadata(registry: Registry) -> Iterator[Finding]:
    yield from (Finding("warn", "metadata", fault) for fault in registry.faults)
    for offer in registry.offers:
        try:
            registry.find(offer.kind, offer.name)
        except SrtError as error:
            yield Finding("warn", error.part, f"{error.cause}; {error.remedy}")


def _editables() -> Iterator[Finding]:
    """Editable installs whose pyproject.toml has other entry points than were there at install time."""
    for dist in importlib.metadata.distributions():
        origin = json.loads(dist.read_text("direct_url.json") or "{}")
        if not origin.get("dir_info", {}).get("editable"):
            continue
        file = Path(unquote(urlparse(origin["url"]).path)) / "pyproject.toml"
        name = dist.metadata["Name"]
        if not file.is_file():
            yield Finding("warn", name, f"is an editable install of {file.parent}, which has no pyproject.toml")
            continue
        tables = tomllib.loads(file.read_text("utf-8")).get("project", {}).get("entry-points", {})
        written = {(group, key, value) for group, entries in tables.items() for key, value in entries.items()}
        installed = {(e.group, e.name, e.value) for e in dist.entry_points if not e.group.endswith("_scripts")}
        if changed := sorted(written ^ installed):
            group, key, _ = changed[0]
            detail = f"{file} and the installed metadata differ in {group}: {key}; pip install -e {file.parent}"
            yield Finding("fail", name, detail)


def _script() -> Iterator[Finding]:
    script = Path(sys.executable).with_name("srt")
    try:
        subtitles = importlib.metadata.version("srt")
    except importlib.metadata.PackageNotFoundError:
        return
    ours = script.is_file() and "srtkit" in script.read_text("utf-8", "replace")
    owner = "srtkit owns the script now" if ours else "it owns the script"
    detail = f"the subtitle package srt {subtitles} installs a script of that name too, {owner}; use `srtkit` instead"
    yield Finding("warn", "srt", detail)


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
