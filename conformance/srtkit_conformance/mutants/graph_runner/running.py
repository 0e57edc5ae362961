"""Runners that run steps wrongly."""

from __future__ import annotations

from srtkit.spec.errors import Unsupported
from srtkit.spec.graph_runner import GraphRunnerBuild, Program
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.graph_runner.simple import Outputs, SimpleRunner, Taken, simple


class RunsLarger(SimpleRunner):
    """Replays the graph of the next larger key."""

    def find(self, program: Program, key: StepKey) -> Taken:
        super().find(program, key)
        larger = [
            one for one in self.taken.values() if one.program is program and one.key.tokens > key.tokens and key.q_len
        ]
        return min(larger, key=lambda one: one.key.tokens) if larger else super().find(program, key)


class Remembers(SimpleRunner):
    """The outputs of a key's first run serve for the next, too."""

    def __init__(self, build: GraphRunnerBuild) -> None:
        super().__init__(build)
        self.seen: dict[object, Outputs] = {}

    def run(self, program: Program, key: StepKey) -> Outputs:
        name = self.name(program, key)
        if name in self.seen:
            program.before(key)
            return self.seen.pop(name)
        self.seen[name] = super().run(program, key)
        return self.seen[name]


class RunsTwice(SimpleRunner):
    """The first run of a key is its warm-up as well."""

    def replay(self, taken: Taken) -> Outputs:
        if taken.turn == 0:
            taken.graph.replay()
        return super().replay(taken)


class ForgetsBefore(SimpleRunner):
    """Does the host work after the launch, for the next step."""

    def run(self, program: Program, key: StepKey) -> Outputs:
        outputs = self.replay(self.find(program, key))
        program.before(key)
        return outputs


class RingOfTwo(SimpleRunner):
    """Keeps the outputs of two runs, whatever the depth."""

    def ring_size(self) -> int:
        return min(2, super().ring_size())


class ByKeyAlone(SimpleRunner):
    """Tells captured steps apart by their key."""

    def name(self, program: Program, key: StepKey) -> object:
        return key


class RunsEagerly(SimpleRunner):
    """Runs what was not captured without a graph."""

    def run(self, program: Program, key: StepKey) -> Outputs:
        try:
            return super().run(program, key)
        except Unsupported:
            program.before(key)
            return program.body(key)


class SameSeed(SimpleRunner):
    """Sets the random generator back in every run."""

    def replay(self, taken: Taken) -> Outputs:
        import torch  # not above: a check sees whether the descriptor's functions import it

        torch.manual_seed(0)
        outputs = super().replay(taken)
        self.build.platform.current_stream().synchronize()
        return outputs


class Waits(SimpleRunner):
    """Waits for each step."""

    def replay(self, taken: Taken) -> Outputs:
        outputs = super().replay(taken)
        self.build.platform.current_stream().synchronize()
        return outputs


class SkipsTheHundredth(SimpleRunner):
    """Forgets one launch in a hundred."""

    runs = 0

    def replay(self, taken: Taken) -> Outputs:
        self.runs += 1
        return taken.ring[taken.turn] if self.runs % 100 == 0 else super().replay(taken)


class RecordsGates(SimpleRunner):
    """Takes a program with gates, as one graph."""

    def refuse(self, program: Program) -> None:
        return


runs_larger = mutant(
    "graph_runner.runs_larger",
    of="cuda-full",
    sentence="Runs a decode step with the next larger graph.",
    killed_by=("graph_runner.equals_eager",),
)(simple(RunsLarger))

remembers = mutant(
    "graph_runner.remembers",
    of="cuda-full",
    sentence="Every second run of a key gives the outputs of the one before.",
    killed_by=("graph_runner.new_inputs",),
)(simple(Remembers))

runs_twice = mutant(
    "graph_runner.runs_twice",
    of="cuda-full",
    sentence="The first run of a key runs it twice.",
    killed_by=("graph_runner.once",),
    note="Like runs_larger it changes the state in every check that runs steps; only the named one says why.",
)(simple(RunsTwice))

forgets_before = mutant(
    "graph_runner.forgets_before",
    of="cuda-full",
    sentence="Does a step's host work after launching it.",
    killed_by=("graph_runner.before",),
)(simple(ForgetsBefore))

ring_of_two = mutant(
    "graph_runner.ring_of_two",
    of="cuda-full",
    sentence="Outputs outlive one further run, and no more.",
    killed_by=("graph_runner.outputs_live",),
)(simple(RingOfTwo))

by_key_alone = mutant(
    "graph_runner.by_key_alone",
    of="cuda-full",
    sentence="Two programs share the graphs of a key.",
    killed_by=("graph_runner.programs_apart",),
)(simple(ByKeyAlone))

runs_eagerly = mutant(
    "graph_runner.runs_eagerly",
    of="cuda-full",
    sentence="Runs a key that it has not captured, silently, without a graph.",
    killed_by=("graph_runner.unknown_key",),
)(simple(RunsEagerly))

same_seed = mutant(
    "graph_runner.same_seed",
    of="cuda-full",
    sentence="Every run draws the same random numbers.",
    killed_by=("graph_runner.random",),
)(simple(SameSeed))

waits = mutant(
    "graph_runner.waits",
    of="cuda-full",
    sentence="Returns from run when the step is over.",
    killed_by=("graph_runner.no_wait",),
)(simple(Waits))

skips_the_hundredth = mutant(
    "graph_runner.skips_the_hundredth",
    of="cuda-full",
    sentence="One run in a hundred is not launched.",
    killed_by=("graph_runner.traffic",),
)(simple(SkipsTheHundredth))

records_gates = mutant(
    "graph_runner.records_gates",
    of="cuda-breakable",
    sentence="Has what the host decides at a gate in its graph.",
    killed_by=("graph_runner.gates",),
)(simple(RecordsGates))

takes_gates = mutant(
    "graph_runner.takes_gates",
    of="cuda-full",
    sentence="Declares that it has no gates, and takes a program with some.",
    killed_by=("graph_runner.gates",),
    note="what it declares is wrong, where another's recording is",
)(simple(RecordsGates))

cuts_nothing = mutant(
    "graph_runner.cuts_nothing",
    of="cuda-piecewise",
    sentence="Declares that it cuts, and captures a step whole.",
    killed_by=("graph_runner.cuts",),
    note="Nor does it cut at gates.",
)(simple())
