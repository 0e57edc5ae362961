"""`srt debug first-run`: what the owner of new hardware runs once, and the report that tells what came of it.

Each step is a command of `srt` in a process of its own, as a kernel may end its process. Judges nothing itself.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import PlatformDescriptor
from srtkit_plugin_cli_debug import calls, signatures
from srtkit_plugin_cli_debug.plugins import descriptor_of, file_of

KINDS = ("attention", "ops", "graph_runner")
"""Of which the platform's own choice is tried, or what was named."""
TOLD = ("srtkit-core", "torch", "triton")
SHOWN = 60
"""Lines of a step's output in the report, the last ones."""


@dataclass(frozen=True)
class Outcome:
    """A command, its exit code, the seconds that it took, and what it printed."""

    command: Sequence[str]
    code: int
    seconds: float
    said: str


def commands(platform: str, parts: Sequence[str], level: int) -> Iterator[list[str]]:
    """What is run, in order: what is wrong with the machine, then each library, then each plugin on the device."""
    yield ["doctor"]
    shipped = [part for part in parts if file_of(part, signatures.FILE)]
    yield from (["debug", "signatures", part] for part in shipped)
    yield from (["debug", "calls", part, "--platform", platform] for part in parts if file_of(part, calls.FILE))
    for part in (f"platform:{platform}", *parts):
        yield ["conformance", "run", part, "--device", platform, "--level", str(level)]


def run(platform: str, named: Mapping[str, str], level: int, report: Path, limit: float) -> int:
    """Run all of it and write the report. 1: something failed.

    `named`: plugins by kind, in place of the platform's first choice. A step ends after `limit` seconds. Raises
    `DeviceAbsent` when there is no such device here, `PluginNotFound` for what is not installed.
    """
    descriptor: PlatformDescriptor = descriptor_of("platform", platform)
    devices = descriptor.probe(descriptor.options())
    if not devices:
        remedy = "run it on such a machine; --platform cpu shows on any what it does"
        raise DeviceAbsent(f"platform:{platform}", "its device is not here", remedy)
    chosen = descriptor.defaults(devices[0]).plugins
    parts = [f"{kind}:{named.get(kind) or chosen[kind][0]}" for kind in KINDS if named.get(kind) or chosen.get(kind)]
    for part in parts:
        file_of(part, signatures.FILE)  # is it installed?
    outcomes = []
    for command in commands(platform, parts, level):
        print(f"srt {' '.join(command)}", flush=True)
        outcomes.append(_outcome(command, limit))
        print(f"  {_verdict(outcomes[-1])}, {outcomes[-1].seconds:.0f} s", flush=True)
        report.write_text(text(devices[0], outcomes), "utf-8")
    failed = sum(one.code != 0 for one in outcomes)
    print(f"{len(outcomes) - failed} of {len(outcomes)} steps passed; written: {report}")
    return int(failed > 0)


def text(facts: DeviceFacts, outcomes: Sequence[Outcome]) -> str:
    """The report, in Markdown."""
    lines = [
        f"# First run on {facts.count} x {facts.name} ({facts.platform} {facts.architecture})",
        "",
        ", ".join(f"{name} {version}" for name, version in _versions().items()),
        "",
        "| step | result | seconds |",
        "| --- | --- | ---: |",
        *(f"| `srt {' '.join(one.command)}` | {_verdict(one)} | {one.seconds:.0f} |" for one in outcomes),
    ]
    for one in outcomes:
        said = one.said.rstrip().splitlines()
        cut = [f"… {len(said) - SHOWN} lines before"] if len(said) > SHOWN else []
        lines += ["", f"## srt {' '.join(one.command)}", "", "```", *cut, *said[-SHOWN:], "```"]
    return "\n".join([*lines, ""])


def _outcome(command: Sequence[str], limit: float) -> Outcome:
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "srtkit", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        said = late.output or b""
        return Outcome(command, -1, time.monotonic() - begin, f"{said.decode(errors='replace')}\nended after {limit} s")
    return Outcome(command, done.returncode, time.monotonic() - begin, done.stdout)


def _verdict(one: Outcome) -> str:
    if one.code < 0:
        return f"ended by signal {-one.code}" if one.code != -1 else "took too long"
    return f"failed ({one.code})" if one.code else "passed"


def _versions() -> dict[str, str]:
    """Of srtkit, of what every plugin uses, and of every library whose functions are recorded."""
    names = [*TOLD]
    for entry in metadata.entry_points():
        kind = entry.group.removeprefix("srtkit.").partition(".")[0]
        if entry.group.startswith("srtkit.") and kind in KINDS and (table := signatures.table_of(f"{kind}:{entry.name}")):
            names.append(table.distribution)
    found = {"python": sys.version.split()[0]}
    for name in dict.fromkeys(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
