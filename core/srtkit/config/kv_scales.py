"""Scales of FP8 KV: the file beside the weights that `srt calibrate kv` writes (docs/kv-scales.md), or else what is
stored among the weights, read and checked. Knows layers and numbers; no model, no device and no torch.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from srtkit.spec.attention import LayerGroup
from srtkit.spec.errors import LoaderError

# A weight that is a scale: of which layer, and of keys or of values.
STORED = re.compile(r".+\.(\d+)\.(?:.+\.)?([kv])_scale")
REMEDY = "`srt calibrate kv` writes a file that fits; without one, scales are those of the weights, or else 1.0"
Scale = Annotated[float, msgspec.Meta(gt=0, lt=1e38)]  # finite as float32, too
Scales = dict[int, Annotated[dict[Literal["k", "v"], Scale], msgspec.Meta(min_length=2)]]


class KVScales(msgspec.Struct):
    """The file. `weights` is the digest of those it was made with. Other keys are for people."""

    format: Literal["srtkit-kv-scales/1"]
    weights: str
    kv_dtype: str
    layers: Scales


def kv_scales_file(path: Path) -> Path:
    """Where the file of a model lies: inside its folder, beside its GGUF file."""
    return path / "kv_scales.json" if path.is_dir() else path.with_suffix(".kv_scales.json")


def kv_scales(path: Path, weights: str, groups: Sequence[LayerGroup], stored: Mapping[str, float]) -> Scales:
    """Scales of keys and values of every layer that stores FP8: the file's, else those of weights named as `STORED`
    says, else 1.0.

    Raises `LoaderError` for scales that are damaged, or of another model, dtype or number of layers.
    """
    file, fp8 = kv_scales_file(path), [one for one in groups if "fp8_kv" in one.spec.features]
    layers = sorted(layer for one in fp8 for layer in one.layers)
    if not fp8 or not (stored or file.exists()):
        return {layer: {"k": 1.0, "v": 1.0} for layer in layers}
    kv_dtype = fp8[0].spec.kv_dtype
    part = str(file if file.exists() else path)
    try:
        found = (
            msgspec.json.decode(file.read_bytes(), type=KVScales)
            if file.exists()
            else KVScales("srtkit-kv-scales/1", weights, kv_dtype, _of_weights(stored, kv_dtype))
        )
    except (OSError, msgspec.DecodeError) as error:
        raise LoaderError(part, f"has no proper scales of KV: {error}", REMEDY) from None
    here, there = (weights, kv_dtype, layers), (found.weights, found.kv_dtype, sorted(found.layers))
    for what, ours, its in zip(("weights", "KV dtype", "layers"), here, there, strict=True):
        if ours != its:
            raise LoaderError(part, f"has scales of KV of other {what}: {its}, not {ours}", REMEDY)
    return found.layers


def _of_weights(stored: Mapping[str, float], kv_dtype: str) -> Scales:
    """Stored scales are for e4m3fn, which ends at 448; those of e4m3fnuz, which ends at 240, are twice as large."""
    found: dict[int, dict[str, float]] = {}
    for name, value in stored.items():
        if match := STORED.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = value * (2.0 if kv_dtype.endswith("fnuz") else 1.0)
    return msgspec.convert(found, Scales)
