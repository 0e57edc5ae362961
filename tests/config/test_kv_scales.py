"""The file of KV scales: where it lies, what it must say, and what is made of layers without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from srtkit.config.kv_scales import kv_scales, kv_scales_file
from srtkit.spec.attention import AttentionSpec, LayerGroup
from srtkit.spec.errors import LoaderError

PAIR = {"k": 0.1, "v": 0.25}
RIGHT = {"format": "srtkit-kv-scales/1", "weights": "ab", "kv_dtype": "float8_e4m3fn", "layers": {"0": PAIR, "2": PAIR}}


STORED = {f"model.layers.{i}.self_attn.{which}_scale": 0.5 + i for i in (0, 2) for which in "kv"}


def group(*layers: int, kv_dtype: str = "float8_e4m3fn") -> LayerGroup:
    return LayerGroup("full.0", AttentionSpec(4, 2, 16, 16, 0.25, "float32", kv_dtype), layers)


def test_the_file_is_read_for_layers_that_store_fp8(tmp_path: Path) -> None:
    groups = [group(2), group(0), group(1, kv_dtype="float32")]
    assert kv_scales(tmp_path, "ab", groups, {}) == {0: {"k": 1.0, "v": 1.0}, 2: {"k": 1.0, "v": 1.0}}
    kv_scales_file(tmp_path).write_text(json.dumps(RIGHT | {"made": "by hand"}))
    assert kv_scales(tmp_path, "ab", groups, STORED) == {0: PAIR, 2: PAIR}
    kv_scales_file(tmp_path).write_text("damaged")
    assert kv_scales(tmp_path, "ab", groups[2:], {}) == {}


def test_it_lies_in_the_folder_or_beside_the_gguf_file(tmp_path: Path) -> None:
    assert kv_scales_file(tmp_path) == tmp_path / "kv_scales.json"
    assert kv_scales_file(tmp_path / "Model.Q4_1.gguf") == tmp_path / "Model.Q4_1.kv_scales.json"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"weights": "cd"}, "of other weights: cd, not ab"),
        ({"kv_dtype": "float8_e4m3fnuz"}, "of other KV dtype: float8_e4m3fnuz, not float8_e4m3fn"),
        ({"layers": {"0": PAIR}}, r"of other layers: \[0\], not \[0, 2\]"),
        ({"layers": {"0": PAIR, "2": {"k": 0.1, "v": 0.0}}}, "no proper scales of KV.* > 0"),
        ({"layers": {"0": PAIR, "2": {"k": 0.1}}}, "no proper scales of KV.* >= 2"),
        ({"format": "srtkit-kv-scales/2"}, "no proper scales of KV.*srtkit-kv-scales/2"),
        (None, "no proper scales of KV.*truncated"),
    ],
    ids=["weights", "dtype", "layers", "zero", "one of two", "format", "truncated"],
)
def test_what_is_damaged_or_of_another_model_is_refused(
    tmp_path: Path, change: dict[str, Any] | None, cause: str
) -> None:
    kv_scales_file(tmp_path).write_text(json.dumps(RIGHT)[:-1] if change is None else json.dumps(RIGHT | change))
    with pytest.raises(LoaderError, match=cause) as caught:
        kv_scales(tmp_path, "ab", [group(0, 2)], {})
    assert caught.value.part.endswith("kv_scales.json") and "srt calibrate kv" in caught.value.remedy


def test_scales_among_the_weights_are_taken_where_there_is_no_file(tmp_path: Path) -> None:
    """They are for e4m3fn; those of the other flavour, which ends at 240, are twice as large."""
    assert kv_scales(tmp_path, "ab", [group(0, 2)], STORED) == {0: {"k": 0.5, "v": 0.5}, 2: {"k": 2.5, "v": 2.5}}
    twice = kv_scales(tmp_path, "ab", [group(0, 2, kv_dtype="float8_e4m3fnuz")], STORED)
    assert twice == {0: {"k": 1.0, "v": 1.0}, 2: {"k": 5.0, "v": 5.0}}
    other_names = {"model.layers.0.self_attn.attn.k_scale": 0.5, "model.layers.0.self_attn.v_proj.v_scale": 0.25}
    assert kv_scales(tmp_path, "ab", [group(0)], other_names) == {0: {"k": 0.5, "v": 0.25}}
    assert kv_scales(tmp_path, "ab", [group(0, kv_dtype="float32")], STORED) == {}


@pytest.mark.parametrize(
    ("stored", "cause"),
    [
        ({"layers.0.k_scale": 0.5}, ">= 2"),
        (STORED | {"layers.0.k_scale": 0.0}, "> 0"),
        (STORED | {"layers.0.k_scale": float("inf")}, "< 1e"),
        ({"layers.0.k_scale": 0.5, "layers.0.v_scale": 0.5}, r"other layers: \[0\], not \[0, 2\]"),
    ],
    ids=["one of two", "zero", "infinite", "too few"],
)
def test_scales_among_the_weights_are_checked_as_those_of_a_file_are(
    tmp_path: Path, stored: dict[str, float], cause: str
) -> None:
    with pytest.raises(LoaderError, match=cause) as caught:
        kv_scales(tmp_path, "ab", [group(0, 2)], stored)
    assert caught.value.part == str(tmp_path)
