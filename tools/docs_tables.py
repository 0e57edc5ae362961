"""Writes docs/hooks.md and docs/contracts/ from the source of `srtkit.spec`: signatures and docstrings as they stand.

Reads syntax trees and imports nothing of what it documents. `--check` writes nothing and fails if a page
differs from the source. Knows Python and Markdown; no kind and no contract. Other made parts are only listed here.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from textwrap import dedent

from srtkit.spec.versions import CONTRACTS
from tools import certificates, checks_table, compatibility
from tools.dists import ROOT

SPEC = ROOT / "core" / "srtkit" / "spec"
DOCS = ROOT / "docs"
SHARED = sorted({path.stem for path in SPEC.glob("[!_]*.py")} - {*CONTRACTS, "hookspecs", "versions"})
"""Modules of the contract that belong to no kind."""
NOTE = "<!-- Made by `make docs` from core/srtkit/spec/{}.py. Edit that, not this. -->\n"


@dataclass(frozen=True)
class Source:
    """One module of the contract: its lines and what stands at its top level."""

    module: str
    lines: tuple[str, ...]
    tree: ast.Module

    @classmethod
    def of(cls, module: str) -> Source:
        """Read `core/srtkit/spec/<module>.py`."""
        text = (SPEC / f"{module}.py").read_text("utf-8")
        return cls(module, tuple(text.splitlines()), ast.parse(text))

    def span(self, first: int, last: int | None) -> list[str]:
        """Lines `first` to `last`, counted from 1, both included."""
        return list(self.lines[first - 1 : last])

    def head(self, node: ast.ClassDef | ast.FunctionDef) -> list[str]:
        """A definition from its first decorator to the line before its body."""
        return self.span(min(n.lineno for n in (node, *node.decorator_list)), node.body[0].lineno - 1)


def code(lines: Sequence[str]) -> str:
    """A Python block, shifted to the left, without what is said to mypy."""
    text = "\n".join(re.sub(r"  # type: ignore\[.*?\]", "", line) for line in lines)
    return f"```python\n{dedent(text)}\n```\n"


def doc(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """A docstring as Markdown."""
    return (ast.get_docstring(node) or "") + "\n"


def names(node: ast.stmt) -> list[str]:
    """What a top-level statement defines, without private names."""
    found: list[str] = []
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        found = [node.name]
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        found = [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in found if not name.startswith("_")]


def of_class(source: Source, node: ast.ClassDef) -> Iterator[str]:
    """A class: docstring, the head with its fields, then its methods."""
    fields = [part for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)]
    yield doc(node)
    yield code([*source.head(node), *(line for f in fields for line in source.span(f.lineno, f.end_lineno))])
    for method in (part for part in node.body if isinstance(part, ast.FunctionDef)):
        if ast.get_docstring(method) or method.name == "__init__" or not method.name.startswith("_"):
            yield code(source.head(method))
            yield doc(method)


def page(source: Source) -> str:
    """A module: its docstring, then every public name in the source's order."""
    parts = [NOTE.format(source.module), f"# {source.module}\n", doc(source.tree)]
    for node, after in zip_longest(source.tree.body, source.tree.body[1:]):
        for name in names(node):
            parts.append(f"## {name}\n")
            if isinstance(node, ast.ClassDef):
                parts += of_class(source, node)
            elif isinstance(node, ast.FunctionDef):
                parts += [code(source.head(node)), doc(node)]
            else:
                parts.append(code(source.span(node.lineno, node.end_lineno)))
                if isinstance(after, ast.Expr):  # a string below a value describes it
                    parts.append(doc(ast.Module([after], [])))
    return "\n".join(parts)


def hooks() -> str:
    """The page of hooks: one a kind, with its group, its version and what it returns."""
    source = Source.of("hookspecs")
    parts = [NOTE.format("hookspecs"), "# Hooks\n", doc(source.tree)]
    found = {node.name: node for node in source.tree.body if isinstance(node, ast.FunctionDef)}
    for kind, contract in CONTRACTS.items():
        hook = found[f"srtkit_{kind}"]
        assert isinstance(hook.returns, ast.Name)
        link = f"[`{hook.returns.id}`](contracts/{kind}.md#{hook.returns.id.lower()})"
        parts += [f"## {hook.name}\n", code(source.span(hook.lineno, hook.body[0].lineno - 1)), doc(hook)]
        parts.append(f"Group `{contract.group}`, contract {contract.version}. Returns {link}.\n")
    return "\n".join(parts)


def contents() -> str:
    """The list of the contract's pages."""
    rows = [f"| [{kind}]({kind}.md) | {c.version} | `{c.group}` | `{c.short}` |" for kind, c in CONTRACTS.items()]
    shared = [f"- [{module}]({module}.md): {doc(Source.of(module).tree).splitlines()[0]}" for module in SHARED]
    table = ["| kind | version | entry-point group | short form in names |", "| --- | --- | --- | --- |", *rows]
    return "\n".join([NOTE.format("versions"), "# Contracts\n", *table, "\nWhat they share:\n", *shared, ""])


def pages() -> dict[Path, str]:
    """Every generated page: path → content."""
    modules = {DOCS / "contracts" / f"{module}.md": _module(module) for module in (*CONTRACTS, *SHARED)}
    others = {"compatibility.md": compatibility.page(), "conformance/README.md": certificates.page()}
    own = {"hooks.md": hooks(), "contracts/README.md": contents(), **others}
    return {**{DOCS / name: text for name, text in own.items()}, **modules}


def _module(name: str) -> str:
    """The page of a module, with the checks where it is a kind's."""
    return "\n".join(filter(None, (page(Source.of(name)), checks_table.section(name))))


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or name those that are not current; 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs_tables", description="Write the pages of the contract.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not current")
    check = parser.parse_args(argv).check
    stale = {path: text for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(ROOT)} is not what the source says; run `make docs`", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
