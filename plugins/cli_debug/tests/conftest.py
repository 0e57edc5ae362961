"""Plugins with one planted fault each, and a dump of a shadow run over each of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from srtkit import Engine
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from tests.live_server import tiny
from tests.plugins.toys import Site

SOURCE = Path(__file__).with_name("faulty.py")
THROUGH_THE_ENGINE = ("page-swapped", "tail-read", "wrong-head", "stale-plan")
FAULTS = (*THROUGH_THE_ENGINE, "window-off")
PROMPTS = [list(range(5, 46)), [1, 2, 3], [7, 8, 9] * 22]


@dataclass(frozen=True)
class Shadowed:
    """The dump of a shadow run over a faulty backend, what the run said, and what it generated."""

    dump: Path
    said: str
    tokens: list[list[int]]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Where the faulty plugins are installed, for this process and its children."""
    site = Site(tmp_path_factory.mktemp("site"))
    for fault in FAULTS:
        module = f"faulty_{fault.replace('-', '_')}"
        site.add(f"toy-{fault}", {"srtkit.attention.v1": {fault: module}}, {module: SOURCE.read_text()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site.path), prepend=os.pathsep)
        patch.syspath_prepend(site.path)
        yield site


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama: two layers, four query heads on two KV heads."""
    return tiny.make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small operations: a second thread would mostly wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generate(model: Path, folder: Path, options: Mapping[str, Any]) -> list[list[int]]:
    """Greedy tokens of the prompts, together."""
    file = folder / "settings.toml"
    file.write_text(f'[model]\nsource = "{model}"\ndtype = "float32"\n')
    given = {"memory.kv_gib": "0.03", "memory.page_size": "16", "scheduler.chunk_tokens": "64"}
    with Engine.from_config(file, {**given, **options}) as engine:
        made = engine.generate(PROMPTS, temperature=0, max_tokens=6, ignore_eos=True)
    return [one.token_ids for one in made]


@pytest.fixture(scope="session")
def shadowed(site: Site, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Shadowed]:
    """By fault: four through the engine; the tiny model has no window, so the fifth on a step of the suite's."""
    done = {}
    for fault in FAULTS:
        folder = tmp_path_factory.mktemp(fault)
        options = {"every": 1, "reports": 1, "folder": str(folder / "dumps")}
        with logged() as lines:
            if fault in THROUGH_THE_ENGINE:
                tokens = shadowed_tokens(model, folder, fault, options)
            else:
                tokens = []
                _one_step(folder, {"watch": fault, **options})
        (dump,) = (folder / "dumps").iterdir()
        done[fault] = Shadowed(dump, "\n".join(lines), tokens)
    return done


def shadowed_tokens(model: Path, folder: Path, fault: str, options: Mapping[str, Any]) -> list[list[int]]:
    """What a faulty backend generates, under a shadow with these options."""
    shadow = {f"attention.options.shadow.{name}": str(value) for name, value in options.items()}
    return generate(model, folder, {"attention.use": fault, "attention.shadow": "torch", **shadow})


def _one_step(folder: Path, options: Mapping[str, Any]) -> None:
    """A step of decode rows and a prompt's chunk in a layer with a window, under the shadow."""
    target = load_target(Subject("attention", "shadow"), suite_for("attention"), folder)
    target = replace(target, options=type(target.options).model_validate(options))
    harness = Harness(target)
    case = harness.case(rows_of((99, 1), (75, 33), (0, 17)), leading=1, window=24, dtype="float32")
    Step(harness.rig(case), case).run()


@contextmanager
def logged() -> Iterator[list[str]]:
    """What the shadow says meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("srtkit.attention.shadow")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
