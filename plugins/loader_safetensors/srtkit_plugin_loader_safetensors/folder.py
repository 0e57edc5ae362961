"""What lies in a model folder: JSON files, and which files hold the weights. No torch, reads no weights.

Weights are taken from safetensors only. Pickled ones (.bin, .pt) are never opened, because opening a pickle
runs the code in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srtkit.spec.errors import LoaderError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth")


def refusal(path: Path, cause: str, remedy: str = "") -> LoaderError:
    """An error about this file or folder."""
    return LoaderError("model_loader:safetensors", f"{path}: {cause}", remedy)


def is_model_folder(path: Path) -> bool:
    """Whether `path` is a folder with safetensors, or one with pickled weights only, which `describe` refuses."""
    if not path.is_dir():
        return False
    if (path / INDEX).exists() or any(path.glob("*.safetensors")):
        return True
    return (path / "config.json").exists() and _pickles(path) != [] and not any(path.glob("*.gguf"))


def read_json(path: Path, unique_keys: bool = False) -> dict[str, Any]:
    """An object out of a JSON file. Raises `LoaderError` when it is missing or damaged.

    `unique_keys`: refuse an object that has a key twice, of which JSON readers silently take the last.
    """
    try:
        content = json.loads(path.read_bytes(), object_pairs_hook=_without_repetition if unique_keys else None)
    except FileNotFoundError:
        raise refusal(path.parent, f"the file {path.name} is missing", "fetch the whole model") from None
    except OSError as error:
        raise refusal(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise refusal(path, f"is not sound JSON: {error}", "fetch the file again") from error
    if not isinstance(content, dict):
        raise refusal(path, "holds no JSON object", "fetch the file again")
    return content


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Like `read_json`; empty when there is no such file."""
    return read_json(path) if path.exists() else {}


def weight_files(folder: Path) -> dict[Path, frozenset[str] | None]:
    """The files that hold weights → the names each must hold; None: whatever it holds.

    Raises `LoaderError` for files that are missing, that the index puts outside the folder, or that are pickles.
    """
    index = folder / INDEX
    if (folder / SINGLE).exists():
        return {folder / SINGLE: None}
    if index.exists():
        return _indexed(folder, read_json(index, unique_keys=True))
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: None}
    if found:
        raise refusal(folder, f"holds {len(found)} safetensors files and no {INDEX}", f"fetch {INDEX}")
    if pickles := _pickles(folder):
        cause = f"its weights are pickled ({pickles[0].name}), and opening a pickle runs the code in it"
        raise refusal(folder, cause, "save the model as safetensors: model.save_pretrained(folder) of transformers")
    raise refusal(folder, f"holds neither {SINGLE} nor {INDEX}", "fetch the weights of the model")


def _indexed(folder: Path, index: Mapping[str, Any]) -> dict[Path, frozenset[str] | None]:
    where = index.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise refusal(folder / INDEX, "has no weight_map", "fetch the file again")
    names: dict[str, set[str]] = {}
    for weight, file in where.items():
        # A plain name only: no folder, no drive, nothing that leads out of this folder.
        if not isinstance(file, str) or not file.endswith(".safetensors") or set(file) & set("/\\:\0"):
            raise refusal(folder / INDEX, f"puts {weight} into {file!r}, which is no safetensors file of this folder")
        names.setdefault(file, set()).add(weight)
    missing = sorted(file for file in names if not (folder / file).is_file())
    if missing:
        raise refusal(folder, f"the files {', '.join(missing)} of {INDEX} are missing", "fetch the whole model")
    return {folder / file: frozenset(names[file]) for file in sorted(names)}


def _pickles(folder: Path) -> list[Path]:
    return sorted(file for pattern in PICKLES for file in folder.glob(pattern))


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        [(repeated, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated!r} stands there twice")
    return content
