"""What the sub-commands do, in the order of `srt conformance --help`, and how they end."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from srtkit.config.hints import did_you_mean
from srtkit.plugins.registry import discover
from srtkit.spec.errors import ConfigError, DeviceAbsent, PluginError, PluginNotFound
from srtkit_conformance import show
from srtkit_conformance.badge import badge
from srtkit_conformance.catalogue import KINDS, LOADING, SERVER, Suite, suite_for
from srtkit_conformance.certificate import standing_of
from srtkit_conformance.check import Check, SuiteError
from srtkit_conformance.child import preload
from srtkit_conformance.declared import declared
from srtkit_conformance.diff import differences
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.junit import junit
from srtkit_conformance.markdown import report_page
from srtkit_conformance.matrix import matrix_page
from srtkit_conformance.report import Clock, Report, make_report, read_report, write_report
from srtkit_conformance.runner import Runner
from srtkit_conformance.selftest import Plan, prove
from srtkit_conformance.suite import run_checks
from srtkit_conformance.waivers import read_waivers

MET, FAILED, USAGE, NOT_LOADED, SUITE_AT_FAULT, NO_DEVICE = range(6)
DEFAULT_LEVEL = 3
"""Of a run, where the kind has checks of it. A soak is asked for by name."""
SEEDS = 3
"""Of a self-test, unless it is told otherwise."""


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen sub-command; returns the exit code."""
    command: Callable[[argparse.Namespace], int] = {
        "run": _run,
        "list": _list,
        "explain": _explain,
        "replay": _replay,
        "selftest": _selftest,
        "badge": _badge,
        "certificate": _certificate,
        "diff": _diff,
    }[arguments.action]
    try:
        return command(arguments)
    except BrokenPipeError:  # core's: the reader of a pipe has gone
        raise
    except (ConfigError, OSError) as error:  # an OSError: a file of the command line cannot be read or written
        return _ended(str(error), USAGE)
    except PluginNotFound as error:
        return _ended(f"{error}\n  a plugin of your own: python -m pip install --editable FOLDER", NOT_LOADED)
    except DeviceAbsent as error:
        return _ended(str(error), NO_DEVICE)
    except PluginError as error:
        return _ended(str(error), NOT_LOADED)
    except SuiteError as error:
        return _ended(f"the suite is at fault: {error}", SUITE_AT_FAULT)
    except Exception:  # plugins run in checks only, where whatever they raise is a failed check
        return _ended(f"the suite is at fault:\n{traceback.format_exc()}", SUITE_AT_FAULT)


def _ended(sentence: str, code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return code


def _run(arguments: argparse.Namespace) -> int:
    kind, name = _kind_and_name(arguments)
    suite = _suite(kind, KINDS)
    if arguments.level is None:
        arguments.level = min(DEFAULT_LEVEL, _highest(suite))
    platform, _, index = (arguments.device or (name if kind == "platform" else "cpu")).partition(":")
    if index and not index.isdecimal():
        raise ConfigError("--device", f'"{arguments.device}" is not of the form PLATFORM:INDEX')
    loads_only = arguments.level == 0 and not arguments.only
    subject = Subject(kind, name, platform, int(index or 0), arguments.seed, loads_only=loads_only)
    return _certify(subject, suite, arguments)


def _kind_and_name(arguments: argparse.Namespace) -> tuple[str, str]:
    kind, colon, name = arguments.plugin.partition(":")
    if not colon:
        part = f"srt conformance {arguments.action}"
        raise ConfigError(part, f'"{kind}" is not of the form KIND:NAME', "see `srt plugins list`")
    return kind, name


def _certify(subject: Subject, suite: Suite, arguments: argparse.Namespace) -> int:
    chosen = _chosen(suite, arguments.level, arguments.only)
    checks = [replace(one, seconds=one.seconds * arguments.patience) for one in chosen]
    known = {one.id for one in suite.checks()}
    waivers = read_waivers(arguments.waivers, known) if arguments.waivers else {}
    clock = Clock()
    preload([suite])
    with tempfile.TemporaryDirectory(prefix="srt-conf-") as name:
        folder = Path(name)
        target = load_target(subject, suite, folder)
        print(show.heading(target))
        runner = Runner(subject, suite, target, folder)
        results = run_checks(checks, runner, waivers, lambda one: print(show.line(one), flush=True))
        report = make_report(target, results, None if arguments.only else arguments.level, waivers, clock)
    print(show.summary(report))
    if arguments.report:
        write_report(report, arguments.report)
    if arguments.md:
        arguments.md.write_text(report_page(report), "utf-8")
    if arguments.junit:
        arguments.junit.write_bytes(junit(report))
    return report.exit_code


def _chosen(suite: Suite, level: int, only: Sequence[str] | None) -> list[Check]:
    checks = suite.checks()
    if only:
        known = [one.id for one in checks]
        for id_ in only:
            if id_ not in known:
                remedy = f"{_nearest(id_, known)} `srt conformance list {suite.kind}` lists all".lstrip()
                raise ConfigError("--only", f'{suite.kind} has no check "{id_}"', remedy)
        return [one for one in checks if one.id in only]
    if level > _highest(suite):
        cause = f"{suite.kind} has no checks of level {level}"
        raise ConfigError("--level", cause, f"its highest level is {_highest(suite)}")
    return [one for one in checks if one.level <= level]


def _nearest(id_: str, known: Sequence[str]) -> str:
    """The check that may have been meant: of the same last word, or spelt alike."""
    same = [one for one in known if one.rpartition(".")[2] == id_.rpartition(".")[2]]
    return f'did you mean "{same[0]}"?' if same else did_you_mean(id_, known)


def _highest(suite: Suite) -> int:
    return max(one.level for one in suite.checks())


def _suite(kind: str, among: Sequence[str] = (LOADING, SERVER, *KINDS)) -> Suite:
    if kind not in among:
        raise ConfigError("srt conformance", f'"{kind}" is no kind that it certifies', f"kinds: {', '.join(KINDS)}")
    return suite_for(kind)


def _list(arguments: argparse.Namespace) -> int:
    for kind in [arguments.kind] if arguments.kind else KINDS:
        for one in _suite(kind).checks():
            print(f"L{one.level}  {one.id:44} {one.clause}")
    return MET


def _explain(arguments: argparse.Namespace) -> int:
    kind = arguments.id.partition(".")[0]
    (one,) = _chosen(_suite(kind), 0, [arguments.id])
    print(show.explanation(one))
    return MET


def _replay(arguments: argparse.Namespace) -> int:
    report: Report = read_report(arguments.report)
    plugin, device = report.plugin, report.device
    subject = Subject(plugin.kind, plugin.name, device.platform, device.index, report.seed)
    for sentence in show.changed_since(report):
        print(f"note: {sentence}")
    return _certify(
        subject,
        _suite(plugin.kind, KINDS),
        argparse.Namespace(level=0, only=[arguments.id], patience=1.0, waivers=None, junit=None, report=None, md=None),
    )


def _selftest(arguments: argparse.Namespace) -> int:
    suites = [_suite(kind) for kind in arguments.kind or (LOADING, SERVER, *KINDS)]
    known = {one.id for suite in suites for one in suite.mutants()}
    for id_ in arguments.mutant or ():
        if id_ not in known:
            raise ConfigError("--mutant", f'there is no mutant "{id_}"')
    preload(suites)
    plan = Plan(tuple(range(arguments.seeds or SEEDS)), arguments.quick, frozenset(arguments.mutant or ()))
    once = replace(plan, seeds=plan.seeds[:1])
    # Nothing is random in loading. In a server weights and prompts are; a seed takes minutes, so others if asked for.
    single = (LOADING,) if arguments.seeds else (LOADING, SERVER)
    proofs = [
        prove(suite, once if suite.kind in single else plan, lambda text: print(text, flush=True)) for suite in suites
    ]
    if arguments.matrix:
        arguments.matrix.write_text(matrix_page(proofs), "utf-8")
    print(show.proved(proofs, quick=arguments.quick))
    return SUITE_AT_FAULT if any(proof.faults for proof in proofs) else MET


def _badge(arguments: argparse.Namespace) -> int:
    print(json.dumps(badge(read_report(arguments.report)), indent=2))
    return MET


def _certificate(arguments: argparse.Namespace) -> int:
    kind, name = _kind_and_name(arguments)
    registry = discover()
    found = standing_of(kind, name)
    rows = [("certificate", str(found)), *declared(registry.find(kind, name), registry)]
    print("\n".join(f"{row:12}  {words}" for row, words in rows))  # in line with what `srt plugins show` says above it
    return MET if found.state == "valid" else FAILED


def _diff(arguments: argparse.Namespace) -> int:
    lines, worse = differences(read_report(arguments.before), read_report(arguments.after))
    print("\n".join(lines) or "no difference")
    return FAILED if worse else MET
