"""Proof of the suite: references and legal variants pass, every mutant is found by its named check.

In the first seed every check of the kind is run on every mutant, which gives the kill matrix; in the other
seeds the named killer only. Knows no kind's meaning.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from srtkit.spec.errors import DeviceAbsent, PluginNotFound
from srtkit_conformance.catalogue import DEVICES, NOT_PASSED, REFERENCES, SERVER, Suite, suite_for
from srtkit_conformance.check import Check
from srtkit_conformance.find import Subject, load_target, mutated
from srtkit_conformance.mutant import Mutant
from srtkit_conformance.result import Result
from srtkit_conformance.runner import Runner
from srtkit_conformance.target import Target

HIGHEST = 2
"""Levels above run through a server: their checks run only where a mutant names them."""
SOAK = 4
"""A level whose checks take long on whatever passes: on mutants that do not name them, and when it is quick on all
others, they do not run."""
SLOW = frozenset({"server.keeps_workspaces", "server.small_batches", "server.loses_aborts"})
"""Found by a soak, on the fake device, or after a wait for what does not come: half a minute each."""
QUICK = 1
"""Highest level of the checks that the quick self-test runs on legal variants."""
SERVERS = 2
"""How many a reference is served by; certificates take all that there are. One for a mutant, or when it is quick."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What a self-test covers. `quick`: the first seed, and on each mutant its named killer only, so no matrix.

    References are held to every check but soaks all the same; legal variants to those of the first certificate; the
    `SLOW` mutants are left to the whole one.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    quick: bool = False
    only: frozenset[str] = frozenset()

    def covers(self, mutant: Mutant) -> bool:
        """Whether a mutant is part of it. The references are only when all mutants are."""
        return not self.only or mutant.id in self.only


@dataclass(frozen=True)
class Row:
    """One mutant or variant: the checks that failed on it in the first seed, with what they said."""

    mutant: Mutant
    failed: dict[str, str]


@dataclass
class Proof:
    """The outcome for one kind. `faults` are sentences; without any, the suite is proved.

    `passed` are checks that a reference passed. `whole`: all mutants were part of it.
    """

    kind: str
    checks: tuple[str, ...]
    whole: bool = True
    rows: list[Row] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Checks that are the named killer of no mutant."""
        named = {row.mutant.killed_by[0] for row in self.rows if not row.mutant.legal}
        return tuple(one for one in self.checks if one not in named)


def prove(suite: Suite, plan: Plan, say: Say, references: Sequence[str] | None = None) -> Proof:
    """Run a kind's references, variants and mutants."""
    mutants = [one for one in suite.mutants() if plan.covers(one) and not (plan.quick and one.id in SLOW)]
    named = {id_ for one in mutants for id_ in one.killed_by[:1]}
    checks = [one for one in suite.checks() if _proved_here(one, suite) and (one.level <= HIGHEST or one.id in named)]
    proof = Proof(suite.kind, tuple(one.id for one in checks), whole=not plan.only)
    known = {one.id for one in checks}
    for mutant in mutants:
        for id_ in mutant.killed_by:
            if id_ not in known:
                proof.faults.append(f"{mutant.id} is to be killed by {id_}, which is no check of {suite.kind}")
    prover = _Prover(suite, plan, say, checks, proof)
    names = REFERENCES.get(suite.kind, ()) if references is None else references
    for name in () if plan.only else names:
        prover.reference(name)
    for mutant in mutants:
        prover.mutant(mutant)
    if not plan.quick:
        _judge(proof)
    return proof


def _proved_here(check: Check, suite: Suite) -> bool:
    """Loading is proved once, with plugins made of text, and not with every kind."""
    return not check.id.startswith(f"{suite.kind}.loading.")


def _judge(proof: Proof) -> None:
    """Faults that only the whole matrix shows."""
    if proof.whole:
        for id_ in proof.checks:
            if id_ not in proof.passed and id_ not in NOT_PASSED:
                proof.faults.append(f"{id_} passes on no plugin of this repository")
            if id_ in proof.passed and id_ in NOT_PASSED:
                proof.faults.append(f"{id_} passes on a plugin of this repository after all: {NOT_PASSED[id_]}")
    by_killers: dict[frozenset[str], list[Mutant]] = {}
    for row in proof.rows:
        if not row.mutant.legal and row.failed:
            by_killers.setdefault(frozenset(row.failed), []).append(row.mutant)
    for same in by_killers.values():
        silent = [one.id for one in same if not one.note]
        if len(same) > 1 and len(silent) > 1:
            proof.faults.append(f"{', '.join(silent)} are killed by the same checks, and no note says why")


@dataclass
class _Prover:
    """Runs checks on the plugins of one kind and fills the proof."""

    suite: Suite
    plan: Plan
    say: Say
    checks: list[Check]
    proof: Proof
    _loaded: dict[str, Target] = field(default_factory=dict)

    def reference(self, name: str) -> None:
        """A plugin of this repository must pass everything, in every seed."""
        checks = [one for one in self.checks if one.level < SOAK or not self.plan.quick]
        for seed in self.plan.seeds[: 1 if self.plan.quick else None]:
            results = self._run(replace(self._subject(name), seed=seed), checks)
            self._must_be_good(name if ":" in name else f"{self.suite.kind}:{name}", seed, results)
            self.proof.passed |= {one.id for one in results if one.verdict == "pass"}

    def mutant(self, mutant: Mutant) -> None:
        """A variant must pass everything; a mutant must fall to its named check in every seed."""
        subject = replace(self._subject(mutant.of), mutant=mutant.id)
        named = [one for one in self.checks if one.id in mutant.killed_by[:1]]
        for seed in self.plan.seeds[: 1 if self.plan.quick else None]:
            first = seed == self.plan.seeds[0]
            whole = first and not self.plan.quick
            others = [one for one in self.checks if one.level < SOAK or one in named]
            chosen = self._checks_of_variants() if mutant.legal else others if whole else named
            results = self._run(replace(subject, seed=seed), chosen)
            failed = {one.id: one.message for one in results if one.verdict == "fail"}
            if first:
                self.proof.rows.append(Row(mutant, failed))
            if mutant.legal:
                self._must_be_good(f"the legal variant {mutant.id}", seed, results)
            elif not failed.keys() & {one.id for one in named}:
                self.proof.faults.append(f"{mutant.id} survives {mutant.killed_by[0]} in seed {seed}")
        if self.suite.kind == SERVER and not self.plan.quick and not mutant.legal:
            self._must_pass_alone(mutant, subject)
        killers = self.proof.rows[-1].failed
        self.say(f"{self.suite.kind:14} {mutant.id:40} {'legal' if mutant.legal else ' '.join(killers) or 'SURVIVES'}")

    def _must_pass_alone(self, mutant: Mutant, subject: Subject) -> None:
        """What proves a check through a server is found by none of its kind's own: else that would be proof enough."""
        own = suite_for(subject.kind)
        suite = Suite(subject.kind, own.check_modules, self.suite.mutant_modules)
        checks = [one for one in suite.checks() if one.level <= HIGHEST and _proved_here(one, suite)]
        for one in self._run(subject, checks, suite):
            if not one.good:
                self.proof.faults.append(f"{mutant.id} falls to {one.id} already: {one.message}")

    def _checks_of_variants(self) -> list[Check]:
        return [one for one in self.checks if one.level <= QUICK] if self.plan.quick else self.checks

    def _must_be_good(self, who: str, seed: int, results: list[Result]) -> None:
        for one in results:
            if not one.good:
                self.proof.faults.append(f"{who} fails {one.id} in seed {seed}: {one.message}")

    def _run(self, subject: Subject, checks: Sequence[Check], suite: Suite | None = None) -> list[Result]:
        with tempfile.TemporaryDirectory(prefix="srt-conf-") as name:
            folder = Path(name)
            try:
                target = self._target(subject, folder)
            except (PluginNotFound, DeviceAbsent) as error:
                self.proof.faults.append(f"the reference is not here: {error}")
                return []
            runner = Runner(subject, suite or self.suite, target, folder)
            return [runner.run(one) for one in checks]

    def _subject(self, name: str) -> Subject:
        """A plugin of the suite's kind by its name, of another as "kind:name"."""
        kind, _, plain = name.rpartition(":")
        kind = kind or self.suite.kind
        return Subject(kind, plain, DEVICES.get(f"{kind}:{plain}", "cpu"))

    def _target(self, subject: Subject, folder: Path) -> Target:
        """Its plugin, which is looked for and loaded only once, or the mutant of it."""
        part = f"{subject.kind}:{subject.name}"
        if part not in self._loaded:
            self._loaded[part] = load_target(replace(subject, mutant=""), self.suite, folder)
        plain = self._loaded[part]
        servers = 1 if subject.mutant or self.plan.quick else SERVERS
        target = replace(plain, folder=folder, seed=subject.seed, servers=servers, extra=dict(plain.extra))
        return mutated(target, self.suite, subject.mutant) if subject.mutant else target
