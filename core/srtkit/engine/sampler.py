"""Logits → token ids, on the device. Knows rows only by their slot's parameters.

Order of the filters: temperature; top-k by rank (ties by lower id); top-p over what is left; min-p
against the largest probability. A token is then drawn by inverting the cumulative distribution at a
uniform number that is a function of (seed, position) alone, so a row's tokens do not depend on the batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.engine.state import Array, DeviceState
from srtkit.spec.ops import Op
from srtkit.spec.step_plan import Ints

# splitmix64 (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number generators"), as int64.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


@dataclass
class Sampling:
    """The rows that sample: slots and the positions of their new tokens.

    On the device int64 and int32 of the key's rows, slots being 0 behind the N that sample. On the host int32 [N].
    """

    slots: Tensor
    positions: Tensor
    host_slots: Array
    host_positions: Ints


def _shift(x: Tensor, n: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """Float64 [N] in [0, 1), a function of int64 (seed, position) only."""
    x = seed + (position + 1) * _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    x = x ^ _shift(x, 31)
    return _shift(x, 11).double() * 2.0**-53


def sample(logits: Tensor, step: Sampling, state: DeviceState, draw: Op | None = None) -> Tensor:
    """Sample one token a row: logits [N, vocab] → int32 [N], by a provider's operator if there is one.

    Mutates `logits` where a row's stop ids are suppressed (before min_tokens). Which rows need what is decided on the
    host, so that nothing waits for the device.
    """
    rows = state.admitted[step.host_slots]
    _suppress_stops(logits, step, rows["min_position"], state)
    if draw is not None:
        slots, positions = (x[: len(rows)] for x in (step.slots, step.positions))
        own = (x[slots] for x in (state.temperature, state.top_k, state.top_p, state.min_p, state.seed))
        ids: Tensor = draw(logits, *own, positions)
        return ids
    logits = logits.float()
    ids = logits.argmax(dim=-1)
    warm = np.flatnonzero(rows["temperature"] > 0)
    ranked = (rows["top_k"] > 0) | (rows["top_p"] < 1)
    for part, by_rank in ((warm[~ranked[warm]], False), (warm[ranked[warm]], True)):
        if len(part):
            index = state.upload(part)
            slots = step.slots[index]
            temperature, top_k, top_p = state.temperature[slots], state.top_k[slots], state.top_p[slots]
            u = uniform(state.seed[slots], step.positions[index].long())
            ids[index] = drawn(logits[index], temperature, top_k, top_p, state.min_p[slots], u, by_rank=by_rank)
    return ids.int()


def _suppress_stops(logits: Tensor, step: Sampling, min_position: Ints, state: DeviceState) -> None:
    early = np.flatnonzero(step.host_positions < min_position)
    stops = state.stop_ids[step.host_slots[early]]
    row, column = (stops >= 0).nonzero()
    if len(row):
        rows, ids = state.upload(np.stack((early[row], stops[row, column])))
        logits[rows, ids] = -torch.inf


def drawn(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, u: Tensor, *, by_rank: bool
) -> Tensor:
    """A token a row of float32 logits, at temperatures above 0. Each row's own parameters decide, not the batch.

    `by_rank`: rows are sorted, which top_k and top_p need; the others do not.
    """
    full = torch.softmax(logits / temperature[:, None], dim=-1)
    # min-p only removes from the tail, so applying it before the ranks changes what top-p sees
    # by nothing but the removed mass: top-p is therefore taken over the unfiltered mass.
    probs = torch.where(full < min_p[:, None] * full.amax(dim=-1, keepdim=True), 0.0, full)
    return _draw_ranked(full, probs, top_k, top_p, u) if by_rank else _invert(probs, u)


def _draw_ranked(full: Tensor, filtered: Tensor, top_k: Tensor, top_p: Tensor, u: Tensor) -> Tensor:
    """Draw among the top-k and, of their mass, the top-p, without what min-p removed."""
    vocab = full.shape[-1]
    ordered, index = full.sort(dim=-1, descending=True, stable=True)
    k = torch.where(top_k > 0, top_k, vocab)
    ordered = torch.where(torch.arange(vocab, device=full.device)[None] < k[:, None], ordered, 0.0)
    before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    inside = before < top_p.double()[:, None] * ordered.sum(dim=-1, dtype=torch.float64, keepdim=True)
    inside[:, 0] = True
    kept = torch.where(inside & (ordered > 0), filtered.gather(-1, index), 0.0)
    return index.gather(-1, _invert(kept, u)[:, None]).squeeze(1)


def _invert(weights: Tensor, u: Tensor) -> Tensor:
    """The first index whose cumulative weight exceeds u times the total; weights float32 [N, n] ≥ 0."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    target = u[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp_(max=weights.shape[-1] - 1)


def log_probabilities(logits: Tensor, token: Tensor, n_top: int) -> tuple[Tensor, Tensor]:
    """Natural log-probabilities of the unscaled distribution of one row, on the device: ids int32 [1 + n], values.

    The sampled token, int32 [1], comes first, then the `n_top` likeliest.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values, top = logprobs.topk(n_top)
    return torch.cat((token, top.int())), torch.cat((logprobs[token], values))
