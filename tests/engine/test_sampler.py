"""Sampled tokens against an independent float64 softmax, and independence of the batch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from srtkit.engine import ops
from srtkit.engine.sampler import Sampling, log_probabilities, sample, uniform
from srtkit.engine.state import DeviceState
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.platform import PlatformBuild
from srtkit.spec.step_plan import ADMIT, Column, StepKey, StepPlan
from srtkit_plugin_platform_cpu import srtkit_platform

DRAWS = 50_000


def new_state(slots: int) -> DeviceState:
    descriptor = srtkit_platform()
    platform = descriptor.build(PlatformBuild(DeviceFacts("cpu", "test", "x86_64"), descriptor.options()))
    return DeviceState(platform, Limits(max_rows=slots, max_tokens=1, max_context=1, page_size=1))


def admit(state: DeviceState, stops: list[tuple[int, int]] | None = None, **params: object) -> None:
    """Admit every slot with parameters of ADMIT, a value or one a slot."""
    records = np.zeros(len(state.admitted) - 1, ADMIT)
    records["slot"] = np.arange(1, len(records) + 1)
    for name, value in {"temperature": 1.0, "top_p": 1.0, **params}.items():
        records[name] = value
    columns = {Column.ADMIT: records.view(np.int32), Column.STOP_IDS: np.array(stops or [], np.int32).reshape(-1)}
    state.apply(StepPlan(0, StepKey(1, 1), 0, 0, columns))


def sampled(logits: torch.Tensor, slots: np.ndarray, positions: np.ndarray, state: DeviceState) -> torch.Tensor:
    """Sample a copy of the logits at rows of these slots, which an operator does in the same way."""
    both = slots.astype(np.int32), positions.astype(np.int32)
    step = Sampling(*(torch.from_numpy(one).long() for one in both), *both)
    ids = sample(logits.clone(), step, state)
    assert torch.equal(sample(logits.clone(), step, state, ops.sample), ids)
    return ids


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Float64 probabilities, written as the definition reads."""
    scaled = logits.astype(np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    kept = order[:top_k] if top_k > 0 else order
    mass = sum(probs[i] for i in kept)
    nucleus, seen = [], 0.0
    for i in kept:
        if nucleus and seen >= top_p * mass - 1e-9:
            break
        nucleus.append(i)
        seen += probs[i]
    final = [i for i in nucleus if probs[i] >= min_p * probs.max() * (1 - 1e-9)]
    result = np.zeros_like(probs)
    result[final] = probs[final]
    return result / result.sum()


def chi_square_limit(degrees: int) -> float:
    """The 1 - 1e-6 quantile, by Wilson and Hilferty's cube-root approximation (1931)."""
    z, part = 4.753, 2 / (9 * degrees)
    return degrees * (1 - part + z * math.sqrt(part)) ** 3


def draw(logits: np.ndarray, **params: float) -> np.ndarray:
    """50,000 tokens of one distribution, each with its own seed."""
    state = new_state(DRAWS)
    admit(state, seed=np.arange(DRAWS) * 7919 - 12345, **params)
    rows = torch.from_numpy(logits.astype(np.float32)).repeat(DRAWS, 1)
    return sampled(rows, np.arange(1, DRAWS + 1), np.full(DRAWS, 17), state).numpy()


SINGLE = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 5},
    {"top_k": 10_000},
    {"top_p": 0.7},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"temperature": 1e-3},
]
PAIRS = [
    a | b for a, b in itertools.combinations([{"temperature": 0.7}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}], 2)
]
ALL = [{"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.05}]


@pytest.mark.parametrize(
    "params", SINGLE + PAIRS + ALL, ids=lambda params: "-".join(f"{k}{v}" for k, v in params.items())
)
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_draws_follow_the_definition(params: dict[str, float], ties: bool) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 24)
    if ties:
        logits = np.round(logits)  # many equal logits, also at the borders of top-k and top-p
    names = ("temperature", "top_k", "top_p", "min_p")
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    want = reference(logits, *(type(defaults[n])(params.get(n, defaults[n])) for n in names))
    counts = np.bincount(draw(logits, **params), minlength=len(logits))
    assert counts[want == 0].sum() == 0, "a filtered token was drawn"
    cells = want > 0
    if cells.sum() == 1:
        assert counts[cells][0] == DRAWS
        return
    expected = want[cells] * DRAWS
    rare = expected < 5
    statistic = ((counts[cells] - expected)[~rare] ** 2 / expected[~rare]).sum()
    degrees = int((~rare).sum()) - (0 if rare.any() else 1)
    assert statistic < chi_square_limit(max(degrees, 1))


def test_a_wrong_distribution_would_be_noticed() -> None:
    """The limit has teeth: half a percent of temperature is not yet seen, four percent is."""
    logits = np.random.default_rng(3).normal(0, 2, 24)
    counts = np.bincount(draw(logits, temperature=1.04), minlength=24)
    expected = reference(logits, 1.0, 0, 1.0, 0.0) * DRAWS
    common = expected >= 5
    statistic = ((counts - expected)[common] ** 2 / expected[common]).sum()
    assert statistic > chi_square_limit(int(common.sum()) - 1)


def test_same_seed_same_token_alone_and_in_any_batch() -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(0, 3, (9, 500)).astype(np.float32))
    state = new_state(9)
    slots, positions = np.arange(1, 10), np.arange(100, 109)
    admit(
        state,
        seed=rng.integers(-(2**62), 2**62, 9),
        temperature=[0, 1, 1, 1, 0.5, 2, 1, 0, 1],
        top_k=[0, 0, 40, 0, 3, 0, 0, 5, 0],
        top_p=[1, 1, 1, 0.9, 0.5, 1, 1, 1, 0.3],
        min_p=[0, 0, 0, 0, 0.1, 0.2, 0, 0, 0],
    )
    together = sampled(logits, slots, positions, state)
    backwards = sampled(logits.flip(0), slots[::-1], positions[::-1], state).flip(0)
    alone = torch.cat([sampled(logits[i : i + 1], slots[i : i + 1], positions[i : i + 1], state) for i in range(9)])
    assert together.tolist() == backwards.tolist() == alone.tolist()


def test_uniform_numbers_are_uniform_over_seeds_and_positions() -> None:
    for seeds, positions in [
        (torch.arange(DRAWS), torch.zeros(DRAWS, dtype=torch.int64)),
        (torch.zeros(DRAWS, dtype=torch.int64), torch.arange(DRAWS)),
    ]:
        u = uniform(seeds, positions).numpy()
        assert u.min() >= 0 and u.max() < 1
        counts = np.histogram(u, bins=100, range=(0, 1))[0]
        assert ((counts - DRAWS / 100) ** 2 / (DRAWS / 100)).sum() < chi_square_limit(99)
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.03


def test_stop_ids_are_not_sampled_before_min_tokens() -> None:
    state = new_state(2)
    admit(state, [(1, 3), (1, 7)], temperature=0, min_position=20)
    logits = torch.zeros(1, 10)
    logits[0, 3] = 9.0
    logits[0, 7] = 8.0
    logits[0, 5] = 1.0
    assert sampled(logits, np.array([1]), np.array([19]), state).item() == 5
    assert sampled(logits, np.array([1]), np.array([20]), state).item() == 3


def test_log_probabilities() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0])
    ids, values = log_probabilities(logits, torch.tensor([2]), 2)
    want = np.log(np.exp(logits.double().numpy()) / np.exp(logits.double().numpy()).sum())
    assert ids.tolist() == [2, 1, 2]
    np.testing.assert_allclose(values, want[[2, 1, 2]], rtol=1e-6)
