"""Inputs come from the seed alone, and the workloads are the ones that are promised."""

from __future__ import annotations

import hashlib
import itertools
import statistics

import pytest

from srtkit_plugin_cli_bench.arguments import WORKLOAD_NAMES
from srtkit_plugin_cli_bench.workloads import WORKLOADS, Request, Workload, generate, prefix_only, select, warmup

IDS = range(100, 49000)


def digest(requests: list[Request]) -> str:
    return hashlib.sha256(repr([(r.prompt, r.max_tokens, f"{r.arrival:.9f}") for r in requests]).encode()).hexdigest()


@pytest.mark.parametrize(
    ("name", "count", "prompt", "output"),
    [("W1", 1, 128, 256), ("W2", 32, 256, 128), ("W3", 32, 1024 + 32, 32), ("W4", 64, 128, 64)],
)
def test_definitions(name: str, count: int, prompt: int, output: int) -> None:
    requests = generate(WORKLOADS[name], 0, "0", IDS)
    assert len(requests) == count
    assert {len(r.prompt) for r in requests} == {prompt}
    assert {r.max_tokens for r in requests} == {output}


def test_same_seed_same_requests_for_ever() -> None:
    # A changed digest makes every earlier figure incomparable.
    found = {name: digest(generate(w, 0, "0", IDS))[:16] for name, w in WORKLOADS.items()}
    assert found == {
        "W1": "ff1b37261254e189",
        "W2": "b12255f263e463ab",
        "W3": "8511a71d675dbf3d",
        "W4": "daa7517b6f19a880",
    }


def test_seed_repeat_and_workload_change_every_prompt() -> None:
    variants = [generate(WORKLOADS[n], s, r, IDS) for n in ("W1", "W4") for s in (0, 1) for r in ("0", "1")]
    prompts = [request.prompt for requests in variants for request in requests]
    assert len(set(prompts)) == len(prompts)


def test_only_w3_shares_and_only_its_prefix() -> None:
    for workload in WORKLOADS.values():
        prompts = [r.prompt for r in generate(workload, 0, "0", IDS)]
        for one, other in itertools.combinations(prompts, 2):
            common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True))))
            assert workload.prefix <= common <= workload.prefix + 2


def test_w3_prefix_is_new_in_every_repeat() -> None:
    first, second = (generate(WORKLOADS["W3"], 0, repeat, IDS)[0].prompt for repeat in ("0", "1"))
    assert first[:8] != second[:8]


def test_ids_stay_in_their_range() -> None:
    requests = generate(WORKLOADS["W2"], 3, "0", range(5, 9))
    assert {token for r in requests for token in r.prompt} == {5, 6, 7, 8}


def test_arrivals_are_poisson_at_the_rate() -> None:
    requests = generate(Workload("many", requests=4001, prefix=0, prompt=1, output=1, rate=4.0), 0, "0", IDS)
    gaps = [b.arrival - a.arrival for a, b in itertools.pairwise(requests)]
    assert requests[0].arrival == 0
    assert min(gaps) > 0
    # Mean and deviation of an exponential are both 1/rate; 4000 draws give about 1.6 %.
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.08)


def test_arrivals_do_not_depend_on_the_vocabulary() -> None:
    one, other = (generate(WORKLOADS["W4"], 0, "0", ids) for ids in (IDS, range(10, 50)))
    assert [r.arrival for r in one] == [r.arrival for r in other]


def test_all_at_once_without_a_rate() -> None:
    assert {r.arrival for r in generate(WORKLOADS["W2"], 0, "0", IDS)} == {0.0}


def test_warm_up_is_small_and_prefix_request_is_the_prefix() -> None:
    assert warmup(WORKLOADS["W4"]).requests == 8
    assert warmup(WORKLOADS["W1"]).requests == 1
    requests = generate(WORKLOADS["W3"], 0, "0", IDS)
    assert prefix_only(WORKLOADS["W3"], requests) == Request(requests[5].prompt[:1024], 1)


def test_selection_and_the_names_on_the_command_line() -> None:
    assert [w.name for w in select(["all"])] == list(WORKLOAD_NAMES)
    assert [w.name for w in select(["W3", "W1"])] == ["W1", "W3"]
