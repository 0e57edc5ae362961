"""Signatures of FlashInfer's wrappers, read from its source without importing it: `flashinfer_signatures.json`.

    python -m plugins.attention_flashinfer.tests.signatures FOLDER VERSION > flashinfer_signatures.json

FOLDER is the unpacked wheel's `flashinfer`.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("flashinfer_signatures.json")
WRAPPERS = {
    "BatchDecodeWithPagedKVCacheWrapper": "decode.py",
    "BatchPrefillWithPagedKVCacheWrapper": "prefill.py",
}
METHODS = ("__init__", "reset_workspace_buffer", "plan", "_plan_impl", "run")
NO_DEFAULT = "-"
Arguments = list[list[str]]


def read(folder: Path) -> dict[str, dict[str, Arguments]]:
    """Wrapper → method → [name, kind, default as source or "-"], the last definition of each method."""
    table: dict[str, dict[str, Arguments]] = {}
    for wrapper, file in WRAPPERS.items():
        tree = ast.parse((folder / file).read_text(encoding="utf-8"))
        (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == wrapper]
        methods = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in METHODS]
        table[wrapper] = {node.name: _arguments(node.args) for node in methods}
    return table


def _arguments(args: ast.arguments) -> Arguments:
    """Its own `self` left out."""
    plain = args.args
    defaults = [None] * (len(plain) - len(args.defaults)) + args.defaults
    pairs = [(one, "POSITIONAL_OR_KEYWORD", default) for one, default in zip(plain, defaults, strict=True)][1:]
    if args.vararg:
        pairs.append((args.vararg, "VAR_POSITIONAL", None))
    pairs += [(one, "KEYWORD_ONLY", default) for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        pairs.append((args.kwarg, "VAR_KEYWORD", None))
    return [[one.arg, kind, NO_DEFAULT if default is None else ast.unparse(default)] for one, kind, default in pairs]


def signature(arguments: Arguments) -> inspect.Signature:
    """Of a bound method."""
    return inspect.Signature(
        [inspect.Parameter(name, _kind(kind), default=_default(default)) for name, kind, default in arguments]
    )


def _kind(name: str) -> Any:
    return getattr(inspect.Parameter, name)


def _default(source: str) -> Any:
    return inspect.Parameter.empty if source == NO_DEFAULT else ast.literal_eval(source)


if __name__ == "__main__":
    json.dump({"version": sys.argv[2], "signatures": read(Path(sys.argv[1]))}, sys.stdout)
