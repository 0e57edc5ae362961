"""The kill matrix of the self-test: mutants × checks, in characters for a terminal and as a page in Markdown.

The same for the same verdicts, whatever the machine: no times, and mutants and checks as they are defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from srtkit_conformance.markdown import cell
from srtkit_conformance.selftest import Proof, Row

NAMED, ALSO, NOT = "●○·"
LEGEND = f"{NAMED} the named killer, {ALSO} another check that fails, too"


def matrix_text(proof: Proof) -> str:
    """A line a mutant, a column a check that failed on any; then which check each column is, and what none names."""
    shown = _shown(proof)
    width = max((len(row.mutant.id) for row in proof.rows), default=0)
    lines = [f"{proof.kind}: {LEGEND}"]
    for digit in range(len(str(len(shown)))):  # the columns' numbers, read from above
        numbers = (str(number).rjust(len(str(len(shown))))[digit] for number in range(1, len(shown) + 1))
        lines.append(f"{'':{width}}  {''.join(numbers)}".rstrip())
    lines += [f"{row.mutant.id:{width}}  {''.join(_mark(row, one) for one in shown)}" for row in proof.rows]
    lines += [f"{number:4} {one}" for number, one in enumerate(shown, 1)]
    return "\n".join([*lines, *uncovered(proof)])


def uncovered(proof: Proof) -> Iterator[str]:
    """A sentence about the checks that no mutant names, if there are any. None of a part of the mutants."""
    if proof.uncovered and proof.whole:
        yield f"{proof.kind}: the named killer of no mutant: {', '.join(proof.uncovered)}"


def matrix_page(proofs: Sequence[Proof]) -> str:
    """A section a kind, with a row a mutant: what is wrong with it, its named killer, other checks that fail, too."""
    pages = ["# Kill matrix", ""]
    for proof in proofs:
        pages += [f"## {proof.kind}", "", *_section(proof), ""]
    return "\n".join(pages)


def _section(proof: Proof) -> Iterator[str]:
    yield "| mutant | what is wrong with it | named killer | fail, too |"
    yield "| --- | --- | --- | --- |"
    for row in proof.rows:
        if not row.mutant.legal:
            named, also = ([one for one in _shown(proof) if _mark(row, one) == mark] for mark in (NAMED, ALSO))
            ids = f"{_ids(proof, named)} | {_ids(proof, also)}"
            yield f"| {row.mutant.id} | {cell(row.mutant.sentence)} | {ids} |"
    legal = [row.mutant for row in proof.rows if row.mutant.legal]
    if legal:
        yield ""
        yield "Legal, and every check must pass on them:"
        yield ""
        yield from (f"- {one.id}: {cell(one.sentence)}" for one in legal)
    if proof.whole:
        yield ""
        yield f"The named killer of no mutant: {_ids(proof, proof.uncovered) or 'none'}."


def _shown(proof: Proof) -> list[str]:
    return [one for one in proof.checks if any(one in row.failed for row in proof.rows)]


def _mark(row: Row, check_id: str) -> str:
    if check_id not in row.failed:
        return NOT
    return NAMED if check_id in row.mutant.killed_by[:1] else ALSO


def _ids(proof: Proof, ids: Sequence[str]) -> str:
    return ", ".join(f"`{one.removeprefix(f'{proof.kind}.')}`" for one in ids)
