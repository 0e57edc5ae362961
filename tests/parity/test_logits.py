"""Prefill logits of the quick-start model through runner and paged attention, against those of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from torch import Tensor

from srtkit.config.prepare import prepare
from srtkit.config.settings import load_settings
from srtkit.engine.buffers import StepTensors
from srtkit.engine.build import Built, build_engine
from srtkit.spec.messages import Sampling, Submit
from srtkit.spec.step_plan import Column, StepPlan
from tests.parity.conftest import FLOAT32, ONE_THREAD, QUICKSTART
from tests.parity.make_reference import model_path
from tests.parity.reference import Case
from tests.scheduler.invariants import check

TOLERANCE = 2e-4  # relative, L2

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def embedding() -> Tensor:
    """Float32 [vocab, hidden], which is the LM head too, read without our loader."""
    (tensor,) = (one for one in GGUFReader(model_path()).tensors if one.name == "token_embd.weight")
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))


@pytest.fixture(params=["32", pytest.param("2048", marks=pytest.mark.full)], ids=["chunked", "whole"])
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    """An engine's parts, without its thread and channels."""
    sets = {**FLOAT32, **ONE_THREAD, "scheduler.chunk_tokens": request.param}
    run = prepare(load_settings(QUICKSTART, [f"{key}={value}" for key, value in sets.items()]))
    built = build_engine(run.settings, run.loaded, run.facts, run.config, run.path, lambda done, total: None)
    yield built
    built.close()


def prefill_logits(built: Built, prompts: list[list[int]]) -> list[Tensor]:
    """Float32 [vocab] of each prompt's last token."""
    scheduler = built.scheduler
    found: dict[int, Tensor] = {}
    started: dict[int, int] = {}
    seen: list[Tensor] = []
    draw = built.runner._sample

    def seeing(plan: StepPlan, step: StepTensors, outputs: Mapping[str, Tensor]) -> Any:
        seen.append(outputs["logits"][: len(step.rows)].clone())
        return draw(plan, step, outputs)

    built.runner._sample = seeing  # type: ignore[method-assign]
    for rid, ids in enumerate(prompts):
        scheduler.submit(Submit(rid, np.asarray(ids, "<i4").tobytes(), Sampling(temperature=0.0, max_tokens=1)))
    while scheduler.has_work:
        plan = scheduler.plan()
        handle = built.runner.forward(plan)
        deltas = scheduler.commit(plan, built.runner.collect(handle))
        started |= {one.slot: one.rid for one in deltas.started}
        slots = plan.column(Column.ROW_SLOT)[handle.rows].tolist()
        found |= {started[slot]: logits for slot, logits in zip(slots, seen.pop(), strict=True)}
        check(scheduler)
    built.runner._sample = draw  # type: ignore[method-assign]
    return [found[rid] for rid in range(len(prompts))]


def test_prefill_logits_equal_those_of_transformers(built: Built, cases: list[Case], embedding: Tensor) -> None:
    cases = cases[::3] + cases[-1:]  # the last is the longest
    for case, ours in zip(cases, prefill_logits(built, [case.ids for case in cases]), strict=True):
        theirs = embedding @ torch.from_numpy(case.hidden.copy())
        assert int(theirs.argmax()) == case.tokens[0], case.name
        assert float((ours - theirs).norm() / theirs.norm()) < TOLERANCE, case.name
