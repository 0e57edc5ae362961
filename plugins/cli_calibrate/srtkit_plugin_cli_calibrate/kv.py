"""From texts to the file of KV scales: the model reads them with KV in its own dtype, and is watched by `ranges`.

Knows the file's form (docs/kv-scales.md) and how to start an engine; the numbers come from the backend.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from srtkit import Engine
from srtkit.spec.errors import ConfigError, EngineError
from srtkit_plugin_cli_calibrate import FP8_LARGEST
from srtkit_plugin_cli_calibrate.prompts import read_prompts

PART = "srt calibrate kv"
FORMAT = "srtkit-kv-scales/1"
AT_ONCE = 32  # texts that are handed to the engine together
Ranges = dict[int, tuple[float, float]]


def calibrate(args: argparse.Namespace) -> int:
    """Measure and write. Raises `ConfigError` for files, `EngineError` for numbers that are not finite."""
    texts = read_prompts(args.prompts)
    with tempfile.TemporaryDirectory(prefix="srt-calibrate-") as folder:
        with Engine.from_config(args.config, settings(args.sets, args.attention, folder)) as engine:
            about = engine.control("info")["kv_scales"]
            out = Path(args.out or about["file"])
            _check_writable(out)
            tokens = read_texts(engine, texts, args.max_tokens)
        ranges = read_ranges(Path(folder))
    kv_dtype = args.kv_dtype or wanted_dtype(args.config, args.sets)
    made = f"by srt calibrate kv from {len(texts)} texts of {tokens:,} tokens; margin {args.margin:g}"
    write(out, about["weights"], kv_dtype, scales_of(ranges, kv_dtype, args.margin), made)
    keys, values = (max(pair[i] for pair in ranges.values()) for i in (0, 1))
    seen = f"{len(texts)} texts, {tokens:,} tokens, {len(ranges)} layers"
    print(f"{seen}: keys up to {keys:.4g}, values up to {values:.4g}")
    print(f'{out}: scales for memory.kv_dtype = "{kv_dtype}"')
    return 0


def settings(sets: Sequence[str], attention: str, folder: str) -> dict[str, Any]:
    """The user's own, then what calibration needs: KV as the model computes it, nothing reused, nothing recorded."""
    roles = dict.fromkeys(("use", "prefill", "decode", "mla"), "calibrate")
    needed = {
        **{f"attention.{role}": name for role, name in roles.items()},
        "attention.options.calibrate.watch": attention,
        "attention.options.calibrate.folder": folder,
        "memory.kv_dtype": "auto",
        "prefix_cache.use": "chunk",
        "graph_runner.use": "eager",
    }
    return dict(_pair(one) for one in sets) | needed


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("--set", f'"{text}" is not of the form a.b=value', "e.g. --set model.dtype=float32")
    return key.strip(), value.strip()


def wanted_dtype(config: Path, sets: Sequence[str]) -> str:
    """The FP8 dtype that the settings, which an engine has taken, name for KV; else the common one."""
    memory = tomllib.loads(config.read_text("utf-8")).get("memory", {})
    named = dict(_pair(one) for one in sets).get("memory.kv_dtype", memory.get("kv_dtype"))
    return named if named in FP8_LARGEST else "float8_e4m3fn"


def read_texts(engine: Engine, texts: Sequence[str], max_tokens: int) -> int:
    """Have the model read all texts, and write greedily after each; the tokens of the texts."""
    tokens = 0
    for start in range(0, len(texts), AT_ONCE):
        done = engine.generate(list(texts[start : start + AT_ONCE]), max_tokens=max_tokens, temperature=0)
        tokens += sum(one.prompt_tokens for one in done)
    return tokens


def read_ranges(folder: Path) -> Ranges:
    """Layer → largest magnitude of keys and values, of all groups. Raises `EngineError` if one is not finite."""
    found: dict[int, tuple[float | None, float | None]] = {}  # JSON has null for what is no number
    for file in folder.glob("*.json"):
        found |= msgspec.json.decode(file.read_bytes(), type=dict[int, tuple[float | None, float | None]])
    if not found:
        raise EngineError(PART, "the model stores no KV: none of its layers is attention")
    ranges = {layer: (k, v) for layer, (k, v) in found.items() if k is not None and v is not None}
    if wrong := sorted(found.keys() - ranges.keys()):
        raise EngineError(PART, f"keys or values of layers {wrong} are not finite", "try --set model.dtype=float32")
    return ranges


def scales_of(ranges: Ranges, kv_dtype: str, margin: float) -> Ranges:
    """What stored numbers are multiplied by: `margin` times the largest seen is the largest of the dtype."""
    largest = FP8_LARGEST[kv_dtype]
    return {layer: (_scale(k * margin / largest), _scale(v * margin / largest)) for layer, (k, v) in ranges.items()}


def _scale(value: float) -> float:
    """To six digits; 1 where all that was seen is 0."""
    return float(f"{value:.6g}") or 1.0


def write(out: Path, weights: str, kv_dtype: str, scales: Mapping[int, tuple[float, float]], made: str) -> None:
    """Write the file whole, or leave what is there."""
    layers = ",\n".join(f'    "{layer}": {{"k": {k!r}, "v": {v!r}}}' for layer, (k, v) in sorted(scales.items()))
    head = {"format": FORMAT, "weights": weights, "kv_dtype": kv_dtype, "made": made}
    lines = [f'  "{key}": {msgspec.json.encode(value).decode()},' for key, value in head.items()]
    text = "\n".join(["{", *lines, '  "layers": {', layers, "  }", "}", ""])
    draft = out.with_name(f"{out.name}.new")
    try:
        draft.write_text(text, "utf-8")
        os.replace(draft, out)
    except OSError as error:
        raise ConfigError(str(out), f"cannot be written: {error.strerror}", "name another place with --out") from None


def _check_writable(out: Path) -> None:
    """Before the work is done."""
    if not os.access(out.parent, os.W_OK):
        raise ConfigError(str(out), f"cannot be written: no access to {out.parent}", "name another place with --out")
