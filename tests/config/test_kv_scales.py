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


def group(*layers: int, kv_dtype: str = "float8_e4m3fn") -> LayerGroup:
    return LayerGroup("full.0", AttentionSpec(4, 2, 16, 16, 0.25, "float32", kv_dtype), layers)


def test_the_file_is_read_for_layers_that_store_fp8(tmp_path: Path) -> None:
    groups = [group(2), group(0), group(1, kv_dtype="float32")]
    assert kv_scales(tmp_path, "ab", groups) == {0: {"k": 1.0, "v": 1.0}, 2: {"k": 1.0, "v": 1.0}}
    kv_scales_file(tmp_path).write_text(json.dumps(RIGHT | {"made": "by hand"}))
    assert kv_scales(tmp_path, "ab", groups) == {0: PAIR, 2: PAIR}
    kv_scales_file(tmp_path).write_text("damaged")
    assert kv_scales(tmp_path, "ab", groups[2:]) == {}


def test_it_lies_in_the_folder_or_beside_the_gguf_file(tmp_path: Path) -> None:
    assert kv_scales_file(tmp_path) == tmp_path / "kv_scales.json"
    assert kv_scales_file(tmp_path / "Model.Q4_1.gguf") == tmp_path / "Model.Q4_1.kv_scales.json"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"weights": "cd"}, "made for other weights: cd, not ab"),
        ({"kv_dtype": "float8_e4m3fnuz"}, "made for other KV dtype: float8_e4m3fnuz, not float8_e4m3fn"),
        ({"layers": {"0": PAIR}}, r"made for other layers: \[0\], not \[0, 2\]"),
        ({"layers": {"0": PAIR, "2": {"k": 0.1, "v": 0.0}}}, "not a file of KV scales.* > 0"),
        ({"layers": {"0": PAIR, "2": {"k": 0.1}}}, "not a file of KV scales.* >= 2"),
        ({"format": "srtkit-kv-scales/2"}, "not a file of KV scales.*srtkit-kv-scales/2"),
        (None, "not a file of KV scales.*truncated"),
    ],
    ids=["weights", "dtype", "layers", "zero", "one of two", "format", "truncated"],
)
def test_what_is_damaged_or_of_another_model_is_refused(
    tmp_path: Path, change: dict[str, Any] | None, cause: str
) -> None:
    kv_scales_file(tmp_path).write_text(json.dumps(RIGHT)[:-1] if change is None else json.dumps(RIGHT | change))
    with pytest.raises(LoaderError, match=cause) as caught:
        kv_scales(tmp_path, "ab", [group(0, 2)])
    assert caught.value.part.endswith("kv_scales.json") and "srt calibrate kv" in caught.value.remedy
