"""What a layer and its sequences hold: weights and tokens drawn at random, and what must come of them. On the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.layers import DTYPES
from srtkit_conformance.kits.numeric.gates import Truth
from srtkit_conformance.kits.recurrent.case import CHANNELS, Case
from srtkit_conformance.kits.recurrent.gold import Gold
from srtkit_conformance.kits.threads import one_thread

STEP_SIZE = 0.3
"""The mean of dt, about."""


@one_thread()
def draw_weights(case: Case, rng: np.random.Generator) -> dict[str, Tensor]:
    """A layer's small weights, as the contract names them."""
    spec, dtype = case.spec, DTYPES[case.dtype]
    weights = {"conv_weight": _normal(rng, spec.conv_channels, spec.conv_width) * spec.conv_width**-0.5}
    if case.bias:
        weights["conv_bias"] = _normal(rng, spec.conv_channels) * 0.5
    weights = {name: values.to(dtype) for name, values in weights.items()}
    if case.kind == "mamba2":
        weights["a"] = -case.forgets / STEP_SIZE * torch.exp(0.5 * _normal(rng, spec.heads))
        if case.skip:
            weights["d"] = 1 + 0.5 * _normal(rng, spec.heads)
    return weights


@one_thread()
def draw_tokens(case: Case, rng: np.random.Generator, n: int, size: float = 1.0) -> dict[str, Tensor]:
    """The inputs of n tokens, channels of standard deviation `size`."""
    spec = case.spec
    channels = {CHANNELS[case.kind]: (size * _normal(rng, n, spec.conv_channels)).to(DTYPES[case.dtype])}
    spread = torch.exp(0.5 * _normal(rng, n, spec.heads))
    if case.kind == "mamba2":
        return channels | {"dt": STEP_SIZE * spread}
    return channels | {"beta": torch.sigmoid(_normal(rng, n, spec.heads)), "decay": -case.forgets * spread}


class Known:
    """What a layer must give for the tokens of a sequence, as far as it was asked for."""

    def __init__(self, case: Case, weights: Mapping[str, Tensor]) -> None:
        spec = case.spec
        stored = None if spec.state_dtype == "float32" else DTYPES[spec.state_dtype]
        self._golds = (Gold(spec, weights), Gold(spec, weights, rounded=DTYPES[spec.dtype], stored=stored))
        empty = torch.empty(0, spec.heads, spec.head_dim, dtype=torch.float64)
        self._outs = [empty, empty]

    def upto(self, stop: int, tokens: Mapping[str, Tensor]) -> list[Tensor]:
        """The truth and the yardstick, float64 [stop, heads, head_dim]."""
        begin = len(self._outs[0])
        if stop > begin:
            fresh = {name: values[begin:stop] for name, values in tokens.items()}
            self._outs = [
                torch.cat((out, gold.advance(fresh))) for out, gold in zip(self._outs, self._golds, strict=True)
            ]
        return [out[:stop] for out in self._outs]


@dataclass(eq=False)
class Stream:
    """A sequence of tokens, of which the first `done` stand in the state of `slot`. By layer: `weights`, `known`."""

    case: Case
    weights: Sequence[Mapping[str, Tensor]]
    tokens: Mapping[str, Tensor]
    slot: int = 0
    done: int = 0
    known: dict[int, Known] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens[CHANNELS[self.case.kind]])

    def part(self, start: int, stop: int) -> dict[str, Tensor]:
        """Inputs of tokens [start, stop)."""
        assert stop <= len(self), "the sequence has no more tokens"
        return {name: values[start:stop] for name, values in self.tokens.items()}

    def branch(self, at: int, rng: np.random.Generator, slot: int) -> Stream:
        """Another sequence with the same first `at` tokens, which stand in `slot`, and different ones after them."""
        fresh = draw_tokens(self.case, rng, len(self) - at)
        tokens = {name: torch.cat((values[:at], fresh[name])) for name, values in self.tokens.items()}
        return Stream(self.case, self.weights, tokens, slot, at)

    def outputs(self, layer: int, start: int, stop: int) -> list[Tensor]:
        """What the layer must give for tokens [start, stop), float64 [n, heads, head_dim]: truth and yardstick."""
        if layer not in self.known:
            weights = self.weights[layer]
            self.known[layer] = _known(_Source(self.case, _digest(weights, self.tokens), weights))
        return [out[start:] for out in self.known[layer].upto(stop, self.tokens)]


@dataclass(frozen=True)
class _Source:
    """What the solution of a sequence follows from; equal if its digest is."""

    case: Case
    digest: bytes
    weights: Mapping[str, Tensor] = field(compare=False)


@lru_cache(maxsize=256)
def _known(source: _Source) -> Known:
    """The same object for equal sequences: a self-test solves each once for all mutants."""
    return Known(source.case, source.weights)


def _digest(*tensors: Mapping[str, Tensor]) -> bytes:
    """Of names and contents."""
    digest = hashlib.blake2b(digest_size=16)
    for name, values in (item for group in tensors for item in group.items()):
        digest.update(name.encode())
        digest.update(values.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


def truth_of(parts: list[tuple[Stream, int, int]], layer: int) -> Truth:
    """What tokens [start, stop) of sequences must give, one after the other, for the gates."""
    found = [one.outputs(layer, start, stop) for one, start, stop in parts]
    ends = np.cumsum([stop - start for _, start, stop in parts]).tolist()
    rows = [slice(end - (stop - start), end) for end, (_, start, stop) in zip(ends, parts, strict=True) if stop > start]
    out, same = (torch.cat([one[which] for one in found]) for which in (0, 1))
    return Truth(out, out[:0], same, same[:0], rows)


def _normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, np.float32))
