"""What `srt debug show` and `srt debug replay` do, in order. Knows no arithmetic."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from srtkit.spec.errors import Unsupported
from srtkit_plugin_attention_shadow.compare import limit_of
from srtkit_plugin_attention_shadow.dump import load
from srtkit_plugin_cli_debug import explain, words
from srtkit_plugin_cli_debug.explain import Reading
from srtkit_plugin_cli_debug.player import Machine, Player
from srtkit_plugin_cli_debug.reduce import Judge, Verdict, reduced


def show(path: Path) -> int:
    """Print what a dump holds."""
    dump = load(path)
    print("\n".join([*words.describe(dump), *words.listed(dump.meta.findings)]))
    return 0


def replay(args: argparse.Namespace) -> int:
    """Run a dump again, and reduce what differs; writes the smallest dump and a script beside it. 1: they differ."""
    dump = load(args.dump)
    meta = dump.meta
    platform = args.platform or meta.platform.name
    machine = Machine(platform)
    live = Player(args.attention or meta.live.name, machine, args.sets)
    reference = Player(args.against or meta.reference.name, machine)
    print("\n".join(words.describe(dump)))
    print(f"\nreplay of {live.origin(dump)} against {reference.origin(dump)} on {machine.facts.name}")
    tolerance = args.tolerance or meta.tolerance
    judge = Judge(live, reference, limit_of(meta.spec.dtype, tolerance))
    verdict = judge(dump)
    if not verdict.findings:
        judge.reused = True
        verdict = judge(dump)
    if not verdict.findings:
        print(f"they agree: the largest relative error is {float(verdict.error.max()):.3g}, limit {judge.limit:.2g}")
        return 0
    print("they differ" + (" on a plan that was filled before, not on a new one" if judge.reused else ""))
    print("\n".join(words.listed(verdict.findings)))
    if not args.whole:
        _reduce(judge, verdict, args.dump, platform, args.sets)
    return 1


def _reduce(judge: Judge, verdict: Verdict, path: Path, platform: str, sets: Sequence[str]) -> None:
    verdict = reduced(judge, verdict)
    read = _reading(judge, verdict)
    hints = list(explain.hints(judge, verdict, read.keys))
    print("\n".join(["", *words.smallest(judge, verdict, read), *(f"looks like  {one}" for one in hints)]))
    small = path.with_name(f"{path.stem}-min.safetensors")
    verdict.as_dump().save(small)
    small.with_suffix(".py").write_text(words.script(small, judge, platform, sets), "utf-8")
    print(f"\nwritten: {small}\n         {small.with_suffix('.py')}")


def _reading(judge: Judge, verdict: Verdict) -> Reading:
    try:
        return explain.reading(judge, verdict)
    except Unsupported as refusal:
        print(f"no weights: {refusal.cause}")
        return Reading([], False)
