"""Scales of FP8 KV: the file beside the weights that `srt calibrate kv` writes (docs/kv-scales.md), read and checked.

Knows layers and numbers; no model, no device and no torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from srtkit.spec.attention import LayerGroup
from srtkit.spec.errors import LoaderError

REMEDY = "write it anew with `srt calibrate kv`, or remove it: all scales are then 1.0"
Scales = dict[int, Annotated[dict[Literal["k", "v"], Annotated[float, msgspec.Meta(gt=0)]], msgspec.Meta(min_length=2)]]


class KVScales(msgspec.Struct):
    """The file. `weights` is the digest of those it was made with. Other keys are for people."""

    format: Literal["srtkit-kv-scales/1"]
    weights: str
    kv_dtype: str
    layers: Scales


def kv_scales_file(path: Path) -> Path:
    """Where the file of a model lies: inside its folder, beside its GGUF file."""
    return path / "kv_scales.json" if path.is_dir() else path.with_suffix(".kv_scales.json")


def kv_scales(path: Path, weights: str, groups: Sequence[LayerGroup]) -> Scales:
    """Scales of keys and values of every layer that stores FP8: the file's, or 1.0 where there is none.

    Raises `LoaderError` for a file that is damaged, or of another model, dtype or number of layers.
    """
    file, fp8 = kv_scales_file(path), [one for one in groups if "fp8_kv" in one.spec.features]
    layers = sorted(layer for one in fp8 for layer in one.layers)
    if not (fp8 and file.exists()):
        return {layer: {"k": 1.0, "v": 1.0} for layer in layers}
    try:
        found = msgspec.json.decode(file.read_bytes(), type=KVScales)
    except (OSError, msgspec.DecodeError) as error:
        raise LoaderError(str(file), f"is not a file of KV scales: {error}", REMEDY) from None
    here, there = (weights, fp8[0].spec.kv_dtype, layers), (found.weights, found.kv_dtype, sorted(found.layers))
    for what, ours, its in zip(("weights", "KV dtype", "layers"), here, there, strict=True):
        if ours != its:
            raise LoaderError(str(file), f"was made for other {what}: {its}, not {ours}", REMEDY)
    return found.layers
