"""`srt debug first-run`: what the owner of new hardware runs once, and the report that tells what came of it.

Each step is a command of `srt` in a process of its own, as a kernel may end its process. Judges nothing itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
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
PATIENCE = "10"
"""Times the suite's time limits: kernels may be compiled in the first checks, for minutes. One that is ended while it
compiles has done so in vain, and 0.1.7 of aiter leaves a lock behind, which every later start waits for."""
TOLD = ("srtkit-core", "torch", "triton")
SHOWN = 60
"""Lines of a step's output in the report, the last ones."""
TOO_LONG = 124
"""The exit code of what was ended, as that of `timeout`."""


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
    yield from (["debug", "signatures", part] for part in parts if file_of(part, signatures.FILE))
    yield from (["debug", "calls", part, "--platform", platform] for part in parts if file_of(part, calls.FILE))
    for part in (f"platform:{platform}", *parts):
        yield ["conformance", "run", part, "--device", platform, "--level", str(level), "--patience", PATIENCE]


def run(platform: str, named: Mapping[str, str], level: int, report: Path, limit: float) -> int:
    """Run all of it and write the report. 1: something failed.

    `named`: plugins by kind, in place of the platform's first choice. A step ends after `limit` seconds. Raises
    `DeviceAbsent` when there is no such device here, `PluginNotFound` for what is not installed.
    """
    descriptor: PlatformDescriptor = descriptor_of("platform", platform)
    devices = descriptor.probe(descriptor.options())
    if not devices:
        remedy = "`srt doctor` says what it misses on this machine; --platform cpu shows on any what first-run does"
        raise DeviceAbsent(f"platform:{platform}", "its device is not here", remedy)
    chosen = descriptor.defaults(devices[0]).plugins
    parts = [f"{kind}:{named.get(kind) or chosen[kind][0]}" for kind in KINDS if named.get(kind) or chosen.get(kind)]
    steps = [*commands(platform, parts, level)]  # all of them before the first one: a plugin may not be installed
    outcomes = []
    for command in steps:
        print(f"srt {' '.join(command)}", flush=True)
        outcomes.append(_outcome(command, limit))
        print(f"  {_verdict(outcomes[-1])}, {outcomes[-1].seconds:.0f} s", flush=True)
        report.write_text(text(devices[0], _versions(parts), outcomes), "utf-8")
    failed = sum(one.code != 0 for one in outcomes)
    print(f"{len(outcomes) - failed} of {len(outcomes)} steps passed; written: {report}")
    return int(failed > 0)


def text(facts: DeviceFacts, versions: Mapping[str, str], outcomes: Sequence[Outcome]) -> str:
    """The report, in Markdown."""
    lines = [
        f"# First run on {facts.count} x {facts.name} ({facts.platform} {facts.architecture})",
        "",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
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
    """Run it to its end, or to the limit: then it is killed with all processes that it has started."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as said:
        line = [sys.executable, "-m", "srtkit", *command]
        process = subprocess.Popen(line, stdout=said, stderr=subprocess.STDOUT)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = TOO_LONG
        finally:
            if process.poll() is None:
                end(process)
        said.seek(0)
        return Outcome(command, code, time.monotonic() - begin, said.read().decode(errors="replace"))


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and all that it has started.

    That is more than its process group: the conformance suite's children lead groups of their own, and one that hangs
    in a kernel would keep the device from the steps that follow.
    """
    for one in family(process.pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()


def family(process: int) -> list[int]:
    """A running process, all that it has started, and those that these have, by the kernel's account (Linux)."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(file.parent.name)] = int(file.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _verdict(one: Outcome) -> str:
    if one.code == TOO_LONG:
        return "took too long"
    if one.code < 0:
        return f"ended by signal {-one.code}"
    return f"failed ({one.code})" if one.code else "passed"


def _versions(parts: Sequence[str]) -> dict[str, str]:
    """Of srtkit, of what every plugin uses, and of the libraries whose functions are recorded."""
    tables = [table for part in parts if (table := signatures.table_of(part))]
    found = {"python": sys.version.split()[0]}
    for name in dict.fromkeys([*TOLD, *(table.distribution for table in tables)]):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
