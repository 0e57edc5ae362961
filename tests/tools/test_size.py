"""The size tool counts what the rules mean: each measure on a text whose value is known by eye."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel

from tools import size

MODULE = '''"""A docstring
of two lines."""

from __future__ import annotations  # code with a comment

# a comment
LIMIT = 3
"""Documents LIMIT."""

TEXT = """first

third"""


def f(
    a: int,
) -> int:
    """Doc."""
    return (
        a
    )
'''


def test_code_lines_leave_out_blanks_comments_and_docstrings() -> None:
    # the import, LIMIT, two lines of TEXT, three of the signature, three of the return
    assert size.code_lines(MODULE) == 10


def test_code_lines_of_an_empty_file() -> None:
    assert size.code_lines("") == 0


def function(source: str) -> size.Function:
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        ("return 1", 0),
        ("if a:\n  pass", 1),
        ("if a:\n  pass\nelif b:\n  pass\nelif c:\n  pass\nelse:\n  pass", 1),
        ("if a:\n  pass\nelse:\n  if b:\n    pass\n  d()", 2),
        ("for a in b:\n  while c:\n    with d:\n      try:\n        pass\n      finally:\n        pass", 4),
        ("try:\n  pass\nexcept E:\n  if a:\n    pass", 2),
        ("match a:\n  case 1:\n    if b:\n      pass", 2),
        ("if a:\n  def inner():\n    if b:\n      if c:\n        pass", 1),
        ("return [a for a in b if c if d]", 0),
    ],
)
def test_nesting(body: str, depth: int) -> None:
    indented = "".join(f" {line}\n" for line in body.splitlines())
    assert size.nesting(function(f"def f():\n{indented}")) == depth


CLASS = """
class C:
    limit: int = 3

    @overload
    def m(self, a: int) -> int: ...
    @overload
    def m(self, a: str) -> str: ...
    def m(self, a, /, b, *args, c, **kwargs):
        self.x, self.y = a, b
        self.x += 1
        self.z: int = 3
        other.w = self.read
        for self.i in args:
            pass

    @staticmethod
    def s(a, b): ...

    @classmethod
    def k(cls, a): ...

    @property
    def p(self): ...


@triton.jit
def kernel(a, b, c, d, e, f, g, h, i): ...


@torch.library.custom_op("srtkit::store", mutates_args=("a",))
def operator(a, b, c, d, e, f, g, h, i): ...
"""


def values(what: str, name: str) -> list[int]:
    measured = size.measure_source(CLASS, Path("c.py")).measures
    return [m.value for m in measured if m.what == what and m.where.endswith(f" {name}")]


def test_methods_count_without_overloads() -> None:
    assert values("methods", "C") == [4]


def test_attributes_are_different_names_assigned_on_self() -> None:
    assert values("attributes", "C") == [4]


def test_parameters_count_without_self_and_cls() -> None:
    assert values("parameters", "m") == [1, 1, 5]
    assert values("parameters", "s") == [2]
    assert values("parameters", "k") == [1]


def test_kernels_and_operators_take_any_number_of_parameters() -> None:
    assert values("parameters", "kernel") == values("parameters", "operator") == []
    assert values("function lines", "kernel") == [1]


def test_lines_of_functions_and_classes_are_raw() -> None:
    assert values("function lines", "m") == [1, 1, 7]
    assert values("class lines", "C") == [23]


def test_what_is_inside_a_function_is_measured_too() -> None:
    source = "def f():\n    if a:\n        class C:\n            def g(self): ...\n"
    measured = size.measure_source(source, Path("c.py")).measures
    assert [m.where for m in measured if m.what == "function lines"] == ["c.py:1 f", "c.py:4 g"]


@pytest.mark.parametrize(("values", "expected"), [([], 0), ([7], 7), (range(1, 101), 95), (range(1, 21), 19)])
def test_percentile_95(values: list[int], expected: int) -> None:
    assert size.percentile_95(list(values)) == expected


def test_options_are_the_leaves_of_nested_tables_without_those_of_plugins() -> None:
    class Table(BaseModel):
        use: str = "a"
        sizes: list[int] = []

    class Settings(BaseModel):
        name: str = ""
        table: Table = Table()
        options: dict[str, int] = {}

    assert size.options(Settings) == 3


def test_folders_are_measured_without_their_tests(tmp_path: Path) -> None:
    for name in ("a.py", "tests/test_a.py", "b/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    assert [str(file.path) for file in size.measure_folder(tmp_path, tmp_path)] == ["a.py", "b/c.py"]


def test_totals_count_core_and_spec_apart() -> None:
    files = [
        size.measure_source("x = 1\ny = 2\n", Path("core/srtkit/engine/a.py")),
        size.measure_source("x = 1\n", Path("core/srtkit/spec/b.py")),
        size.measure_source("def f():\n    pass\n", Path("plugins/x/y.py")),
    ]
    assert {(m.where, m.what): m.value for m in size.totals(files)} == {
        ("core", "code lines"): 3,
        ("core/srtkit/spec", "code lines"): 1,
        ("all", "function lines p95"): 2,
    }
