"""What is printed of dumps and verdicts. Knows how to say it; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from srtkit_plugin_attention_shadow.compare import LISTED, Finding
from srtkit_plugin_attention_shadow.dump import Dump
from srtkit_plugin_cli_debug.explain import Reading
from srtkit_plugin_cli_debug.reduce import Judge, Verdict


def describe(dump: Dump) -> list[str]:
    """A dump, in lines."""
    meta = dump.meta
    spec, layout = meta.spec, meta.layout
    features = ", ".join(sorted(spec.features | set(meta.features))) or "none"
    contexts = dump.context.tolist()
    lines = [
        f"layer       {meta.layer} of {meta.group}, step {meta.step} of its plan, {meta.covered} rows",
        f"live        {meta.live}",
        f"reference   {meta.reference}",
        f"device      {meta.device}, {meta.platform}",
        f"versions    {', '.join(f'{name} {version}' for name, version in meta.versions.items())}",
        f"heads       {spec.q_heads}/{spec.kv_heads} x {spec.head_dim}, {spec.dtype}, KV {spec.kv_dtype}",
        f"features    {features}" + (f" (window {spec.window})" if spec.window else ""),
        f"layout      {layout.name}, pages of {layout.page_tokens}, {len(dump.page_ids) - 1} pages of the pool",
        f"rows        {dump.rows}, {meta.leading} of them leading; {len(dump.q)} query tokens; "
        f"contexts {min(contexts)} … {max(contexts)}",
    ]
    if meta.rows_left_out:
        lines.append(f"left out    {meta.rows_left_out} rows, for the size of the file")
    return lines


def listed(findings: Sequence[Finding]) -> list[str]:
    """Findings, the worst of them first."""
    lines = [f"  {one}" for one in findings[:LISTED]]
    if len(findings) > LISTED:
        rows, heads = len({one.row for one in findings}), len({one.head for one in findings})
        lines.append(f"  … {len(findings)} in all, in {rows} rows and {heads} heads")
    return lines


def smallest(judge: Judge, verdict: Verdict, read: Reading) -> list[str]:
    """The reduced dump, in lines."""
    dump = verdict.dump
    spec = dump.meta.spec
    parts = [_count(dump.rows, "row"), _count(len(dump.q), "query token"), f"context {int(dump.context.max())}"]
    parts += [_count(spec.q_heads, "query head"), _count(spec.kv_heads, "KV head")]
    parts += [f"window {spec.window}"] if spec.window else []
    lines = [f"the smallest step that still differs, after {judge.runs} comparisons: {', '.join(parts)}"]
    if dump.rows > 1:
        lines.append("  no row of it differs alone")
    lines += listed(verdict.findings)
    if read.keys:
        lines.append("weight of a key" + (", all scores being made equal" if read.equal else ""))
    return lines + [f"  {one}" for one in read.keys]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def script(dump: Path, judge: Judge, platform: str, sets: Sequence[str]) -> str:
    """A Python file that plays a dump on both backends."""
    options = f", {list(sets)!r}" if sets else ""
    reused = ", reused=True" if judge.reused else ""
    return f'''"""{dump.name} on {judge.live.part} and {judge.reference.part}: set a breakpoint and run it."""

from pathlib import Path

from srtkit_plugin_attention_shadow.compare import errors
from srtkit_plugin_attention_shadow.dump import load
from srtkit_plugin_cli_debug.player import Machine, Player

dump = load(Path(__file__).with_name({dump.name!r}))
machine = Machine({platform!r})
out = Player({judge.live.name!r}, machine{options}).play(dump{reused})
wanted = Player({judge.reference.name!r}, machine).play(dump)
print("relative error of each token's heads:")
print(errors(out, wanted))
'''
