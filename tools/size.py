"""Measures the source against the size rules of this house and fails beyond a ceiling.

Counts lines, functions, classes and nesting from tokens and syntax trees, without importing what it
measures; only the configuration is imported, to count its options.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_origin

from pydantic import BaseModel

from srtkit.config.settings import Settings
from tools.dists import ROOT

# Raising a ceiling needs a decision record in docs/decisions.
CORE_CODE_LINES = 6600
SPEC_CODE_LINES = 1800
FILE_LINES = 600
FUNCTION_LINES = 100
FUNCTION_LINES_P95 = 50
CLASS_LINES = 300
CLASS_METHODS = 20
CLASS_ATTRIBUTES = 15
PARAMETERS = 8
NESTING = 4
CORE_OPTIONS = 40

KERNEL_DECORATORS = ("triton.jit", "gluon.jit", "torch.library.custom_op", "torch.library.triton_op")
"""A function with one of these takes as many parameters as its hardware wants."""

_LAYOUT_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Measure:
    """One measured thing: `what` is the rule, `where` is `file:line name`."""

    what: str
    where: str
    value: int
    ceiling: int


@dataclass(frozen=True)
class File:
    """The measures of one source file. `code` counts lines that are neither blank, comment nor docstring."""

    path: Path
    raw: int
    code: int
    measures: tuple[Measure, ...]

    def values(self, what: str) -> list[int]:
        """All values of one rule in this file."""
        return [m.value for m in self.measures if m.what == what]


def code_lines(source: str) -> int:
    """How many lines hold code: not blank, not a comment, not a string that stands as a statement."""
    covered: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT_TOKENS:
            covered.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            covered.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    text = source.splitlines()
    return sum(1 for number in covered if text[number - 1].strip())


def nesting(function: Function) -> int:
    """Deepest level of blocks in a function; `elif` adds none, an inner function is measured by itself."""

    def depth(statements: Iterable[ast.AST], level: int, in_else: bool = False) -> int:
        deepest = level
        for node in statements:
            if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.expr)):
                continue
            is_elif = in_else and isinstance(node, ast.If)
            inner = level + (isinstance(node, _BLOCKS) and not is_elif)
            orelse = node.orelse if isinstance(node, ast.If) else []
            rest = [child for child in ast.iter_child_nodes(node) if child not in orelse]
            deepest = max(deepest, depth(rest, inner), depth(orelse, inner, in_else=len(orelse) == 1))
        return deepest

    return depth(function.body, 0)


def parameters(function: Function, in_class: bool) -> int:
    """How many parameters a caller sees: without self or cls, with `*args` and `**kwargs` as one each."""
    a = function.args
    count = len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs) + bool(a.vararg) + bool(a.kwarg)
    return count - (in_class and "staticmethod" not in decorators(function))


def decorators(function: Function) -> set[str]:
    """Dotted names of the decorators, without their arguments."""
    return {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list}


def attributes(cls: ast.ClassDef) -> int:
    """How many different attributes the methods of a class assign on their first parameter."""
    names: set[str] = set()
    for method in (node for node in cls.body if isinstance(node, _FUNCTIONS)):
        first = [arg.arg for arg in (*method.args.posonlyargs, *method.args.args)][:1]
        names.update(
            node.attr
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and [node.value.id] == first
        )
    return len(names)


def _span(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _of_function(node: Function, where: str, in_class: bool) -> Iterator[Measure]:
    yield Measure("function lines", where, _span(node), FUNCTION_LINES)
    yield Measure("nesting", where, nesting(node), NESTING)
    if decorators(node).isdisjoint(KERNEL_DECORATORS):
        yield Measure("parameters", where, parameters(node, in_class), PARAMETERS)


def _of_class(node: ast.ClassDef, where: str) -> Iterator[Measure]:
    methods = [m for m in node.body if isinstance(m, _FUNCTIONS) and "overload" not in decorators(m)]
    yield Measure("class lines", where, _span(node), CLASS_LINES)
    yield Measure("methods", where, len(methods), CLASS_METHODS)
    yield Measure("attributes", where, attributes(node), CLASS_ATTRIBUTES)


def _walk(parent: ast.AST, path: str) -> Iterator[Measure]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.expr):  # nothing is defined in one
            continue
        if isinstance(node, _FUNCTIONS):
            yield from _of_function(node, f"{path}:{node.lineno} {node.name}", isinstance(parent, ast.ClassDef))
        elif isinstance(node, ast.ClassDef):
            yield from _of_class(node, f"{path}:{node.lineno} {node.name}")
        yield from _walk(node, path)


def measure_source(source: str, path: Path) -> File:
    """Measures one source text; `path` only labels the results."""
    raw = len(source.splitlines())
    measures = (Measure("file lines", str(path), raw, FILE_LINES), *_walk(ast.parse(source), str(path)))
    return File(path, raw, code_lines(source), measures)


def measure_folder(folder: Path, root: Path = ROOT) -> list[File]:
    """Measures every Python file below `folder`, tests excluded."""
    paths = [p for p in sorted(folder.rglob("*.py")) if "tests" not in p.relative_to(folder).parts]
    return [measure_source(path.read_text("utf-8"), path.relative_to(root)) for path in paths]


def percentile_95(values: Sequence[int]) -> int:
    """The smallest value that at least 95 % of the values do not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * 95 // 100) - 1] if ordered else 0


def options(model: type[BaseModel]) -> int:
    """Number of options of a settings model. A nested table counts as its own fields; an open table (a dict)
    holds options of plugins and counts as none."""
    annotations = [field.annotation for field in model.model_fields.values()]
    tables = [a for a in annotations if isinstance(a, type) and issubclass(a, BaseModel)]
    open_tables = [a for a in annotations if get_origin(a) is dict]
    return len(annotations) - len(tables) - len(open_tables) + sum(options(table) for table in tables)


def totals(files: Sequence[File]) -> list[Measure]:
    """The ceilings that hold for all files together."""
    core = [file for file in files if file.path.parts[:1] == ("core",)]
    spec = [file for file in core if "spec" in file.path.parts]
    lengths = [value for file in files for value in file.values("function lines")]
    return [
        Measure("code lines", "core", sum(file.code for file in core), CORE_CODE_LINES),
        Measure("code lines", "core/srtkit/spec", sum(file.code for file in spec), SPEC_CODE_LINES),
        Measure("function lines p95", "all", percentile_95(lengths), FUNCTION_LINES_P95),
    ]


def table(groups: dict[str, list[File]]) -> str:
    """One line a group: files, code and raw lines, then the largest value of each rule."""
    rules = ("file lines", "function lines", "class lines", "methods", "attributes", "parameters", "nesting")
    head = ("", "files", "code", "raw", "p95 function", *(f"max {rule}" for rule in rules))
    rows = [head]
    for name, files in groups.items():
        largest = [max((v for f in files for v in f.values(rule)), default=0) for rule in rules]
        p95 = percentile_95([v for f in files for v in f.values("function lines")])
        code, raw = sum(f.code for f in files), sum(f.raw for f in files)
        rows.append((name, *(str(n) for n in (len(files), code, raw, p95, *largest))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    """Prints the table, the totals and each measure beyond its ceiling; 1 if there is one."""
    tops = ("core", "plugins", "conformance", "bench", "tools")
    groups = {top: files for top in tops if (files := measure_folder(ROOT / top))}
    everything = [file for files in groups.values() for file in files]
    spec = {"core/spec": [file for file in groups["core"] if "spec" in file.path.parts]}
    print(table({**groups, **spec}))
    overall = [*totals(everything), Measure("options", "core", options(Settings), CORE_OPTIONS)]
    for m in overall:
        print(f"{m.where}: {m.what} {m.value} of {m.ceiling}")
    beyond = [m for m in (*overall, *(m for file in everything for m in file.measures)) if m.value > m.ceiling]
    for m in beyond:
        print(f"{m.where}: {m.what} {m.value} > {m.ceiling}", file=sys.stderr)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
