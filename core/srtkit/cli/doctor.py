"""`srt doctor`: looks for what is wrong with this installation and says what to do about it.

Imports every light module, after all else has been looked at: what a broken one replaces harms nobody then.
"""

import argparse
import importlib.metadata
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from srtkit.cli.common import table
from srtkit.plugins.catalogue import CPU_SET
from srtkit.plugins.registry import Registry, discover
from srtkit.spec.errors import PluginBroken, SrtError

LIBRARIES = ("srtkit-core", "torch", "pluggy", "stevedore", "pydantic", "huggingface_hub")
OPEN_FILES = 1024
FREE_DISK_MIB = 512


class Finding(NamedTuple):
    """One checked thing: `verdict` is ok, warn or fail."""

    verdict: str
    subject: str
    detail: str


def configure(parser: argparse.ArgumentParser) -> None:
    """`srt doctor` has no arguments."""
    parser.epilog = "example:\n  srt doctor\n\nIt ends with 1 when something fails; warnings do not count."


def run(arguments: argparse.Namespace) -> int:
    """Print all findings; 1 if one fails."""
    findings = [*_versions(), *_script(), *_machine(), *_plugins(discover())]
    print(table(findings))
    return int(any(finding.verdict == "fail" for finding in findings))


def _versions() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} at {sys.executable}")
    for name in LIBRARIES:
        try:
            yield Finding("ok", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("warn", name, f"is not installed; a set brings it: {CPU_SET}")


def _script() -> Iterator[Finding]:
    """The subtitle package `srt` installs a script of that name, too; the later install wins."""
    script = Path(sys.executable).with_name("srt")
    installed = any(importlib.metadata.distributions(name="srt"))
    if installed and not (script.is_file() and "srtkit" in script.read_text("utf-8", "replace")):
        yield Finding("warn", "srt", "the subtitle package of that name owns the script; `srtkit` is the same command")


def _machine() -> Iterator[Finding]:
    free, folder = shutil.disk_usage(tempfile.gettempdir()).free >> 20, tempfile.gettempdir()
    detail = f"{free} MiB free, at least {FREE_DISK_MIB} are needed"
    yield Finding("ok" if free >= FREE_DISK_MIB else "fail", folder, detail)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{files} (ulimit -n); 1,000 clients need more than {OPEN_FILES}"
    yield Finding("ok" if files >= OPEN_FILES else "warn", "open files", detail)


def _plugins(registry: Registry) -> Iterator[Finding]:
    """Metadata that is damaged, hidden, of another major or a duplicate; then every light module, loaded."""
    from srtkit.plugins.loading import load

    yield from (Finding("warn", "metadata", fault) for fault in registry.faults)
    for kind, name in dict.fromkeys((offer.kind, offer.name) for offer in registry.offers):
        try:
            load(registry.find(kind, name))
            yield Finding("ok", f"{kind}:{name}", "loads")
        except PluginBroken as error:
            yield Finding("fail", error.part, error.cause.splitlines()[0])
        except SrtError as error:  # not broken: nobody may want it as things are
            yield Finding("warn", error.part, f"{error.cause}; {error.remedy}")
