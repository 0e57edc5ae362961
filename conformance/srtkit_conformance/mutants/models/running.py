"""Models whose steps are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from srtkit.spec.models import Model, ModelBuild, ModelInputs, ModelOutput
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.models.wrap import WrappedModel, around, building


class AllRows(WrappedModel):
    def run(self, inputs: ModelInputs) -> ModelOutput:
        every = torch.arange(len(inputs.ids), dtype=torch.int32, device=inputs.ids.device)
        return super().run(replace(inputs, logit_rows=every))


all_rows = mutant(
    "models.all_rows",
    of="models",
    sentence="Gives the logits of all tokens.",
    killed_by=("models.logit_rows",),
)(around(AllRows))


class Remembers(WrappedModel):
    """Adds a trace of every step."""

    def __init__(self, inner: Model) -> None:
        super().__init__(inner)
        self._steps = 0

    def run(self, inputs: ModelInputs) -> ModelOutput:
        self._steps += 1
        output = super().run(inputs)
        output.logits *= 1 + self._steps * 1e-6
        return output


remembers = mutant(
    "models.remembers",
    of="models",
    sentence="Logits depend a little on how many steps there were.",
    killed_by=("models.repeats",),
)(around(Remembers))


class MeanOfTheStep(WrappedModel):
    def run(self, inputs: ModelInputs) -> ModelOutput:
        output = super().run(inputs)
        logits = output.logits - output.hidden.float().mean()
        return ModelOutput(logits, output.hidden, output.taps)


mean_of_the_step = mutant(
    "models.mean_of_the_step",
    of="models",
    sentence="Takes the mean over all tokens of a step away.",
    killed_by=("models.padding",),
)(around(MeanOfTheStep))


class FromTheStart(WrappedModel):
    def run(self, inputs: ModelInputs) -> ModelOutput:
        return super().run(replace(inputs, positions=inputs.positions - inputs.positions[:, :1]))


# Rotation is relative: moving a whole prompt changes nothing, moving one chunk does.
from_the_start = mutant(
    "models.from_the_start",
    of="models",
    sentence="Counts positions from the step's first token.",
    killed_by=("models.chunks",),
)(around(FromTheStart))


class OneSequence(WrappedModel):
    def run(self, inputs: ModelInputs) -> ModelOutput:
        count = torch.arange(inputs.ids.shape[0], device=inputs.ids.device, dtype=torch.int32)
        return super().run(replace(inputs, positions=inputs.positions[:, :1] + count))


one_sequence = mutant(
    "models.one_sequence",
    of="models",
    sentence="Takes a step's tokens for those of one sequence.",
    killed_by=("models.rows",),
)(around(OneSequence))


class IgnoresEmbeds(WrappedModel):
    def run(self, inputs: ModelInputs) -> ModelOutput:
        return super().run(replace(inputs, embeds=None, embed_mask=None))


ignores_embeds = mutant(
    "models.ignores_embeds",
    of="models",
    sentence="Looks every token up, also where an embedding is given.",
    killed_by=("models.embeds",),
)(around(IgnoresEmbeds))


class IgnoresHidden(WrappedModel):
    def run(self, inputs: ModelInputs) -> ModelOutput:
        return super().run(replace(inputs, hidden=None))


ignores_hidden = mutant(
    "models.ignores_hidden",
    of="models",
    sentence="Begins anew where hidden states of another stage are given.",
    killed_by=("models.hidden",),
)(around(IgnoresHidden))


class OneTap(WrappedModel):
    """As taps are that all show one residual, which grows in place."""

    def run(self, inputs: ModelInputs) -> ModelOutput:
        output = super().run(inputs)
        last = output.taps[max(output.taps)] if output.taps else output.hidden
        return ModelOutput(output.logits, output.hidden, dict.fromkeys(output.taps, last))


one_tap = mutant(
    "models.one_tap",
    of="models",
    sentence="Every tap shows the residual after the last layer.",
    killed_by=("models.taps",),
)(around(OneTap))


def _alone(build: ModelBuild, inner: Callable[[ModelBuild], Model]) -> Model:
    return inner(replace(build, communicator=None))


never_sums = mutant(
    "models.never_sums",
    of="models",
    sentence="Ranks do not sum their shares.",
    killed_by=("models.ranks",),
)(building(_alone))
