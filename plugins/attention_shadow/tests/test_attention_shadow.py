"""The pair keeps the contract, leaves the live result alone, and samples, judges and dumps as its options say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from srtkit import Engine
from srtkit.spec.errors import ConfigError, LoaderError
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_plugin_attention_shadow.compare import errors, findings
from srtkit_plugin_attention_shadow.dump import load, only_rows
from srtkit_plugin_attention_torch.backend import TorchAttention
from tests.live_server import tiny


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small operations: a second thread would mostly wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.full
def test_over_the_reference_it_keeps_the_contract() -> None:
    assert shortcomings("attention:shadow", level=2, every=1, folder="") == []


def step_of(folder: Path, kv_dtype: str = "float32", **options: object) -> Step:
    """A decode row and two prompts under the shadow of `torch` by itself."""
    target = load_target(Subject("attention", "shadow"), suite_for("attention"), folder)
    given = {"every": 1, "folder": str(folder), **options}
    harness = Harness(replace(target, options=type(target.options).model_validate(given)))
    case = harness.case(rows_of((40, 1), (20, 5), (0, 9)), leading=1, dtype="float32", kv_dtype=kv_dtype, kv_heads=2)
    return Step(harness.rig(case), case)


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live backend, which is called with `fresh`, makes head 3 of row 1 a hundredth too large."""
    attend = TorchAttention.attend

    def wrong(self, plan, layer, q, out, *, fresh=None, **given):  # type: ignore[no-untyped-def]
        attend(self, plan, layer, q, out, fresh=fresh, **given)
        if fresh is not None:
            out[1:6, 3] *= 1.01

    monkeypatch.setattr(TorchAttention, "attend", wrong)


@pytest.mark.parametrize("kv_dtype", ["float32", "float8_e4m3fn"])
def test_a_dump_holds_what_the_call_read(tmp_path: Path, off: None, kv_dtype: str) -> None:
    step = step_of(tmp_path, kv_dtype)
    out = step.run(fresh=True).out
    dump = load(next(tmp_path.glob("*.safetensors")))
    assert {(one.row, one.head) for one in dump.meta.findings} == {(1, 3)}
    assert dump.meta.live.plugin == "attention:torch" and dump.meta.layer == 0
    assert torch.equal(dump.out, out)
    size = step.case.page
    for row, pages in enumerate(step.pages):
        for index in range(-(-int(step.context[row]) // size)):
            mine, theirs = dump.planes["k"][dump.page_table[row, index]], step.layer.planes["k"][pages[index]]
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
            assert dump.page_ids[dump.page_table[row, index]] == pages[index]
    one = only_rows(dump, [1])
    assert (one.rows, len(one.q), one.meta.leading, one.meta.findings[0].row) == (1, 5, 0, 0)
    assert len(one.page_ids) == 1 + 2
    assert torch.equal(one.planes["v"].float()[one.page_table[0]], dump.planes["v"].float()[dump.page_table[1, :2]])


def test_steps_layers_and_reports_are_limited(tmp_path: Path, off: None, caplog: pytest.LogCaptureFixture) -> None:
    step = step_of(tmp_path, every=2, reports=2)
    for _ in range(6):
        step.run(fresh=True)
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert [f"layer0-step{number}" in text for number, text in zip((0, 2), said, strict=True)] == [True, True]
    assert "nothing is compared any more" in said[1] and "any more" not in said[0]
    other = step_of(tmp_path / "other", layers=(7,))
    other.run(fresh=True)
    assert not (tmp_path / "other").exists()


def test_a_dump_that_cannot_be_written_is_said_and_ends_nothing(
    tmp_path: Path, off: None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    step_of(tmp_path / "file" / "dumps").run(fresh=True)
    [said] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert "row 1" in said and "not written" in said and "[attention.options.shadow] folder" in said


def test_a_dump_that_would_be_too_large_leaves_rows_without_a_finding_out(tmp_path: Path, off: None) -> None:
    step = step_of(tmp_path)
    step.rig.backend._circumstances = replace(step.rig.backend._circumstances, largest=1)  # type: ignore[attr-defined]
    step.run(fresh=True)
    dump = load(next(tmp_path.glob("*.safetensors")))
    assert (dump.rows, dump.meta.rows_left_out, int(dump.n_query[0])) == (1, 2, 5)


def test_errors_and_findings() -> None:
    reference = torch.ones(4, 2, 8)
    out = reference.clone()
    out[1, 1] *= 1.5
    out[2, 0, 3] = torch.nan
    out[3] = 9  # of a padding row
    error = errors(out, reference)
    assert error[1, 1] == pytest.approx(0.5) and error[2, 0] == torch.inf and error[0].max() == 0
    columns = (np.array([2, 1, 1], np.int32), np.array([5, 6, 0], np.int32), np.array([10, 11, 7, 0], np.int32))
    found = findings(error, 0.1, *columns)
    assert [(one.row, one.slot, one.token, one.position, one.head) for one in found] == [
        (1, 6, 2, 7, 0),
        (0, 5, 1, 11, 1),
    ]


def test_a_file_that_is_no_dump_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(LoaderError, match="cannot be read"):
        load(file)


def test_the_engine_generates_the_same_under_a_shadow(tmp_path: Path) -> None:
    model, file = tiny.make_model(tmp_path / "model"), tmp_path / "settings.toml"
    file.write_text(f'[model]\nsource = "{model}"\ndtype = "float32"\n[memory]\nkv_gib = 0.03\n')
    shadow = {"shadow": "torch", "options.shadow.every": "2", "options.shadow.folder": str(tmp_path / "dumps")}

    def tokens(**sets: str) -> list[list[int]]:
        given = {f"attention.{name}": value for name, value in sets.items()}
        with Engine.from_config(file, {"attention.use": "torch", **given}) as engine:
            prompts = [list(range(5, 40)), [1, 2, 3]]
            return [one.token_ids for one in engine.generate(prompts, temperature=0, max_tokens=8, ignore_eos=True)]

    assert tokens(**shadow) == tokens()
    assert not (tmp_path / "dumps").exists()
    with pytest.raises(ConfigError, match="evry"):
        tokens(**shadow, **{"options.shadow.evry": "2"})
