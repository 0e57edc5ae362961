"""What is wrong with this installation, and what to do about it.

Imports every light module, after all else has been looked at: what a broken one replaces harms nobody then.
"""

from __future__ import annotations

import importlib.metadata
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from srtkit.config.prepare import rank_environment
from srtkit.plugins.catalogue import CPU_SET
from srtkit.plugins.loading import calling, load
from srtkit.plugins.registry import Registry, discover
from srtkit.spec.errors import PluginBroken, SrtError
from srtkit.spec.platform import Finding

LIBRARIES = ("srtkit-core", "torch", "pluggy", "stevedore", "pydantic", "huggingface_hub")
OPEN_FILES = 1024
FREE_DISK_MIB = 512


def examine() -> Iterator[Finding]:
    """All findings."""
    yield from (*_versions(), *_script(), *_machine(), *_plugins(discover()))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns; the last is not padded."""
    wide = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    return "\n".join("  ".join((*map(str.ljust, row, wide), row[-1])) for row in rows)


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
    """Metadata that is damaged, hidden, of another major or a duplicate; then every light module, loaded.

    A platform adds what it finds of its device and driver.
    """
    yield from (Finding("warn", "metadata", fault) for fault in registry.faults)
    for kind, name in dict.fromkeys((offer.kind, offer.name) for offer in registry.offers):
        try:
            offer = registry.find(kind, name)
            descriptor = load(offer)
            yield Finding("ok", f"{kind}:{name}", "loads")
            with calling(offer):
                yield from descriptor.examine(rank_environment({})) if kind == "platform" else ()
        except PluginBroken as error:
            yield Finding("fail", error.part, error.cause.splitlines()[0])
        except SrtError as error:  # not broken: nobody may want it as things are
            yield Finding("warn", error.part, f"{error.cause}; {error.remedy}")
