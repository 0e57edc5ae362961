"""Runners whose descriptor is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pydantic import BaseModel

from srtkit.spec.facts import Limits
from srtkit.spec.graph_runner import CaptureLevel, GraphRunnerDescriptor
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.mutant import mutant

Keys = Callable[[Limits, CaptureLevel, BaseModel], Sequence[StepKey]]


def _keys_by_torch(inner: Keys, limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
    import torch

    torch.empty(0)
    return inner(limits, level, options)


@mutant(
    "graph_runner.keys_by_torch",
    of="cuda-full",
    sentence="keys asks torch.",
    killed_by=("graph_runner.no_torch",),
)
def keys_by_torch(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    return replace(descriptor, keys=partial(_keys_by_torch, descriptor.keys))


@mutant(
    "graph_runner.keys_too_large",
    of="cuda-full",
    sentence="The ladder of rows goes beyond the most rows of a step.",
    killed_by=("graph_runner.keys",),
)
def keys_too_large(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    def keys(limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
        found = list(descriptor.keys(limits, level, options))
        if limits.max_rows != 7 or not found:
            return found
        return [*found, StepKey(8, 8, 1)]

    return replace(descriptor, keys=keys)


@mutant(
    "graph_runner.keys_at_any_level",
    of="cuda-full",
    sentence="Lists the same keys at every level.",
    killed_by=("graph_runner.levels",),
)
def keys_at_any_level(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    return replace(descriptor, keys=lambda limits, level, options: descriptor.keys(limits, "any", options))


@mutant(
    "graph_runner.fits_without_padding",
    of="cuda-full",
    sentence="Forgets that tokens that are over need a padding row.",
    killed_by=("graph_runner.fit",),
)
def fits_without_padding(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    def keys(limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
        found = descriptor.keys(limits, level, options)
        return [replace(key, rows=min(key.rows, limits.max_rows, key.tokens)) for key in found]

    def fit(wanted: StepKey, keys: Sequence[StepKey]) -> StepKey | None:
        kind = [key for key in keys if (key.q_len, key.flags) == (wanted.q_len, wanted.flags)]
        room = [key for key in kind if key.rows >= wanted.rows and key.tokens >= wanted.tokens]
        return min(room, key=lambda key: (key.tokens, key.rows), default=None)

    return replace(descriptor, keys=keys, fit=fit)


@mutant(
    "graph_runner.memory_of_the_last",
    of="cuda-full",
    sentence="Counts the memory of the last key only.",
    killed_by=("graph_runner.memory",),
)
def memory_of_the_last(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    return replace(descriptor, memory=lambda keys, *sizes: descriptor.memory(keys[-1:], *sizes))
