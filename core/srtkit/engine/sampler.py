"""Logits → token ids, on the device. Knows rows only by their slot's parameters.

Order of the filters: temperature; top-k by rank (ties by lower id); top-p over what is left; min-p
against the largest probability. A token is then drawn by inverting the cumulative distribution at a
uniform number that is a function of (seed, position) alone, so a row's tokens do not depend on the batch.
"""

import numpy as np
import torch
from torch import Tensor

from srtkit.engine.state import DeviceState

# splitmix64 (Steele, Lea, Flood 2014: "Fast splittable pseudorandom number generators"), as int64.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


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


def sample(logits: Tensor, slots: Tensor, positions: Tensor, state: DeviceState) -> Tensor:
    """Sample one token a row: float32 logits [N, vocab] → int32 [N].

    `slots` int64 [N] row slots; `positions` int64 [N], the position of the token to be sampled.
    Mutates `logits` where a row's stop ids are suppressed (before min_tokens).
    """
    _suppress_stops(logits, slots, positions, state)
    ids = logits.argmax(dim=-1)
    temperature = state.temperature[slots]
    drawn = (temperature > 0).nonzero().squeeze(1)
    if len(drawn):
        ids[drawn] = _draw(logits[drawn], slots[drawn], positions[drawn], state)
    return ids.int()


def _suppress_stops(logits: Tensor, slots: Tensor, positions: Tensor, state: DeviceState) -> None:
    early = (positions < state.min_position[slots]).nonzero().squeeze(1)
    if len(early) == 0:
        return
    stops = state.stop_ids[slots[early]].long()
    row, column = (stops >= 0).nonzero(as_tuple=True)
    logits[early[row], stops[row, column]] = -torch.inf


def _draw(logits: Tensor, slots: Tensor, positions: Tensor, state: DeviceState) -> Tensor:
    """Rows that need ranks are sorted; the others are not. Each row's own parameters decide, not the batch."""
    full = torch.softmax(logits / state.temperature[slots, None], dim=-1)
    u = uniform(state.seed[slots], positions)
    top_k, top_p, min_p = state.top_k[slots], state.top_p[slots], state.min_p[slots]
    probs = torch.where(full < min_p[:, None] * full.amax(dim=-1, keepdim=True), 0.0, full)
    ranked = (top_k > 0) | (top_p < 1)
    ids = torch.empty(len(probs), dtype=torch.int64, device=probs.device)
    plain, by_rank = (~ranked).nonzero().squeeze(1), ranked.nonzero().squeeze(1)
    if len(plain):
        ids[plain] = _invert(probs[plain], u[plain])
    if len(by_rank):
        # min-p only removes from the tail, so applying it before the ranks changes what top-p sees
        # by nothing but the removed mass: top-p is therefore taken over the unfiltered mass.
        ids[by_rank] = _draw_ranked(full[by_rank], probs[by_rank], top_k[by_rank], top_p[by_rank], u[by_rank])
    return ids


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


def log_probabilities(logits: Tensor, ids: Tensor, n_top: int) -> tuple[np.ndarray, np.ndarray]:
    """Natural log-probabilities of the unscaled distribution of one row: (ids [1 + n], values [1 + n]).

    The sampled token comes first, then the `n_top` likeliest.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    values, top = logprobs.topk(n_top)
    token = ids.reshape(1).long().to(logits.device)
    all_ids = torch.cat((token, top)).int()
    return all_ids.cpu().numpy(), torch.cat((logprobs[token], values)).cpu().numpy()
