"""Legal backends that do it otherwise: every check must pass on them. They guard against checks that are too strict."""

from __future__ import annotations

from dataclasses import replace

from srtkit.spec.recurrent import RecurrentBackend, RecurrentBuild, RecurrentDescriptor
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.recurrent.token_by_token import TokenByToken, made_of


@variant(
    "token_by_token",
    of="torch",
    sentence="goes token by token over transposed planes, steps slot 0, keeps no states and has no inner snapshots",
)
def token_by_token(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """The least that the contract asks for."""
    return made_of(descriptor, TokenByToken)


@variant("odd_chunks", of="torch", sentence="computes 7 tokens at once")
def odd_chunks(descriptor: RecurrentDescriptor) -> RecurrentDescriptor:
    """Rounds otherwise than the reference, as other chunk sizes do."""

    def build(build: RecurrentBuild) -> RecurrentBackend:
        return descriptor.build(replace(build, options=descriptor.options(chunk=7)))

    return replace(descriptor, build=build)
