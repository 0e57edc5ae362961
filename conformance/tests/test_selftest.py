"""The proof of a suite, and every way in which it can fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType

import pytest

from conformance.tests import toy_checks, toy_mutants
from srtkit_conformance.catalogue import NOT_PASSED, Suite
from srtkit_conformance.matrix import matrix_page, matrix_text
from srtkit_conformance.mutant import Mutant
from srtkit_conformance.selftest import Plan, Proof, prove

GOOD = ("prefix_cache.toy_passes", "prefix_cache.toy_shares", "prefix_cache.toy_pages")
ALL = (toy_mutants.boasts, toy_mutants.picky, toy_mutants.modest)


Prove = Callable[..., Proof]


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Prove:
    """Proves the good toy checks with the given mutants."""

    def proved(*mutants: Mutant, references: Sequence[str] = ("chunk",), quick: bool = False) -> Proof:
        given = ModuleType("given_mutants")
        vars(given).update({one.id: one for one in mutants})
        monkeypatch.setitem(sys.modules, given.__name__, given)
        suite = Suite("prefix_cache", (toy_checks.__name__,), (given.__name__,))
        return prove(suite, Plan((0, 1), quick), lambda line: None, references)

    return proved


def test_a_suite_that_kills_all_and_spares_the_legal_is_proved(proof: Prove) -> None:
    good = proof(*ALL)
    assert good.faults == [f"{one} passes on no plugin of this repository" for one in GOOD[1:]]
    assert [[*row.failed] for row in good.rows] == [[GOOD[1]], [GOOD[2]], []]
    assert good.uncovered == (GOOD[0],)


def test_a_check_that_is_refused_by_every_plugin_is_an_error_of_the_suite(proof: Prove) -> None:
    """`chunk` shares nothing, `radix` does, which the toy check holds against it."""
    assert "prefix_cache.toy_shares passes on no plugin of this repository" in proof(*ALL).faults


def test_a_reference_that_fails_is_a_fault(proof: Prove) -> None:
    faults = proof(*ALL, references=("radix",)).faults
    assert "prefix_cache:radix fails prefix_cache.toy_shares in seed 0: shares though it must not" in faults
    assert "prefix_cache:radix fails prefix_cache.toy_shares in seed 1: shares though it must not" in faults


def test_a_reference_that_is_not_installed_is_a_fault(proof: Prove) -> None:
    assert "the reference is not here: prefix_cache:nobody" in proof(references=("nobody",)).faults[0]


def test_a_mutant_that_survives_is_a_fault_in_each_seed(proof: Prove) -> None:
    survivor = replace(toy_mutants.boasts, make=lambda descriptor: descriptor)
    faults = proof(survivor).faults
    assert [f"toy_boasts survives prefix_cache.toy_shares in seed {seed}" for seed in (0, 1)] == faults[:2]


def test_one_that_another_check_kills_survives_its_named_one(proof: Prove) -> None:
    mistaken = replace(toy_mutants.boasts, killed_by=(GOOD[2],))
    assert "toy_boasts survives prefix_cache.toy_pages in seed 0" in proof(mistaken).faults


def test_a_variant_that_is_not_spared_is_a_fault(proof: Prove) -> None:
    illegal = replace(toy_mutants.boasts, killed_by=())
    assert any("the legal variant toy_boasts fails prefix_cache.toy_shares" in one for one in proof(illegal).faults)


def test_a_killer_that_does_not_exist_is_a_fault(proof: Prove) -> None:
    lost = replace(toy_mutants.boasts, killed_by=(GOOD[1], "prefix_cache.toy_gone"))
    assert (
        "toy_boasts is to be killed by prefix_cache.toy_gone, which is no check of prefix_cache" in proof(lost).faults
    )


@pytest.mark.parametrize(("note", "faults"), [("", 1), ("another size", 0)])
def test_two_mutants_killed_by_the_same_checks_need_a_note(proof: Prove, note: str, faults: int) -> None:
    twin = replace(toy_mutants.picky, id="toy_twin", note=note)
    found = [one for one in proof(*ALL, twin).faults if "the same checks" in one]
    assert len(found) == faults


def test_quick_runs_named_killers_in_one_seed_and_judges_no_matrix(proof: Prove) -> None:
    quick = proof(*ALL, quick=True)
    assert quick.faults == []
    assert [[*row.failed] for row in quick.rows] == [[GOOD[1]], [GOOD[2]], []]


def test_quick_holds_variants_to_the_first_levels_and_references_to_all(
    proof: Prove, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variant that the whole self-test finds at fault for a check of level 2."""
    late = replace(toy_checks.pages, level=2)
    monkeypatch.setattr(toy_checks, "pages", late)
    illegal = replace(toy_mutants.picky, killed_by=())
    assert any("fails prefix_cache.toy_pages" in one for one in proof(illegal).faults)
    assert proof(illegal, quick=True).faults == []
    wrong = replace(late, body=toy_checks.shares.body)
    monkeypatch.setattr(toy_checks, "pages", wrong)
    assert any("fails prefix_cache.toy_pages" in one for one in proof(references=("radix",), quick=True).faults)


def test_a_soak_runs_on_mutants_that_name_it_and_on_references_unless_it_is_quick(
    proof: Prove, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = replace(toy_checks.pages, level=4)
    monkeypatch.setattr(toy_checks, "pages", late)
    both = replace(
        toy_mutants.boasts, make=lambda descriptor: toy_mutants.boasts.make(toy_mutants.picky.make(descriptor))
    )
    assert [[*row.failed] for row in proof(both, toy_mutants.picky).rows] == [[GOOD[1]], [GOOD[2]]]
    monkeypatch.setattr(toy_checks, "pages", replace(late, body=toy_checks.shares.body))
    boasts = replace(toy_mutants.boasts, killed_by=(GOOD[2],))
    fault = "prefix_cache:radix fails prefix_cache.toy_pages in seed 0: shares though it must not"
    assert fault in proof(boasts, references=("radix",)).faults
    assert fault not in proof(boasts, references=("radix",), quick=True).faults


def test_the_page_has_a_row_a_mutant_with_its_killers(proof: Prove) -> None:
    page = matrix_page([proof(*ALL)]).splitlines()
    assert "| toy_boasts | claims to share | `toy_shares` |  |" in page
    assert "- toy_modest: takes pages of 16 only" in page
    assert page[-1] == "The named killer of no mutant: `toy_passes`."


def test_the_matrix_has_a_line_a_mutant_and_a_column_a_check_and_names_what_is_not_covered(proof: Prove) -> None:
    twice = replace(toy_mutants.picky, id="toy_twice", killed_by=(GOOD[1],), make=toy_mutants.boasts.make)
    assert matrix_text(proof(*ALL, twice)).splitlines()[1:] == [
        "            12",
        "toy_boasts  ●·",
        "toy_picky   ·●",
        "toy_modest  ··",
        "toy_twice   ●·",
        "   1 prefix_cache.toy_shares",
        "   2 prefix_cache.toy_pages",
        "prefix_cache: the named killer of no mutant: prefix_cache.toy_passes",
    ]


def test_what_only_a_variant_passes_is_passed_by_no_plugin(proof: Prove) -> None:
    """`toy_pages` is informational on `chunk`, and passes on `toy_modest`."""
    assert "prefix_cache.toy_pages passes on no plugin of this repository" in proof(*ALL).faults


def test_an_exception_that_is_none_any_more_is_a_fault(proof: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NOT_PASSED, GOOD[0], "a joke")
    monkeypatch.setitem(NOT_PASSED, GOOD[1], "chunk shares nothing")
    monkeypatch.setitem(NOT_PASSED, GOOD[2], "chunk takes pages of any size")
    assert proof(*ALL).faults == [f"{GOOD[0]} passes on a plugin of this repository after all: a joke"]
