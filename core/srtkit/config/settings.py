"""The settings of a run: what the TOML file, `SRT_` variables and `--set` may say. At most 40 options.

Plugins' own options stand in the `options` tables, unread here. Knows no plugin, model or device: what
`auto` and None become is decided by `srtkit.config.resolve`.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, PrivateAttr
from pydantic import model_validator as check

from srtkit.config.hints import did_you_mean
from srtkit.config.origin import KeyPath, Origin, key_lines, validated
from srtkit.spec.errors import ConfigError

PREFIX = "SRT_"


def _as_names(value: object) -> object:
    """A single name is a list of one."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_names, json_schema_input_type=str | tuple[str, ...])]
Options = dict[str, Any]
FloatType = Literal["auto", "bfloat16", "float16", "float32"]


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelSection(Section):
    """What is served."""

    source: str = Field(description="A folder or GGUF file, `package:NAME/FILE` of a package, or a hub id `org/name`.")
    name: str | None = Field(None, description="The name clients use; by default the last part of `source`.")
    dtype: FloatType = Field("auto", description="What is computed in; auto is the platform's choice.")
    revision: str | None = Field(None, description="Branch, tag or commit of a hub id.")
    generation_config: Literal["auto", "none"] = Field("auto", description="Whether the model's own defaults hold.")
    max_context: PositiveInt | None = Field(None, description="Most tokens of a sequence; else as many as can be.")


class OnePlugin(Section):
    """A kind of which one plugin is chosen."""

    use: str | None = Field(None, description="Its name, or `distribution:name` where two distributions offer it.")
    options: Options = Field(default_factory=dict, description="The plugin's own table.")


class PluginList(Section):
    """A kind of which several plugins are chosen, in order."""

    use: Names | None = Field(None, description="A name or a list of names, tried in this order.")
    options: Options = Field(default_factory=dict, description="The plugins' own tables, one a plugin.")


class AttentionSection(OnePlugin):
    """Paged attention. What is not named follows `use`."""

    prefill: str | None = Field(None, description="Backend of rows with more than the decode query length.")
    decode: str | None = Field(None, description="Backend of decode rows.")
    mla: str | None = Field(None, description="Backend of layers with latent attention.")
    draft: str | None = Field(None, description="Backend of a draft model's layers.")
    shadow: str | None = Field(None, description="Reference that attention:shadow compares sampled results with.")
    fallback: Names = Field((), description="Backends to try when `use` cannot be loaded or does not serve the model.")

    @check(mode="after")
    def _contradictions(self) -> Self:
        if self.use is not None and self.use in self.fallback:
            raise ValueError(f'"{self.use}" is both use and fallback')
        return self


class ParallelSection(Section):
    """How many ranks. One process each."""

    tensor: PositiveInt = Field(1, description="Ranks that share every layer.")
    pipeline: PositiveInt = Field(1, description="Groups of layers, one after another.")
    data: PositiveInt = Field(1, description="Independent copies of the model.")


class SchedulerSection(Section):
    """What runs when."""

    max_running: PositiveInt = Field(64, description="Most sequences in one step.")
    chunk_tokens: PositiveInt = Field(2048, description="Most prompt tokens in a step; longer prompts come in chunks.")
    depth: int | None = Field(None, ge=0, description="Steps in flight; by default 0 where launches wait, else 1.")
    max_waiting: PositiveInt = Field(1024, description="Most requests in the queue; beyond it clients get 503.")
    policy: Literal["fcfs", "priority"] = Field("fcfs", description="Order of the queue: arrival, or priority first.")


class MemorySection(Section):
    """How much memory KV takes, and in which form."""

    fraction: float | None = Field(None, gt=0, le=1, description="Share of the device's memory; else the platform's.")
    kv_gib: float | None = Field(None, gt=0, description="GiB of KV pages, instead of what `fraction` leaves.")
    page_size: int | None = Field(None, ge=1, le=256, description="Tokens of a page; by default the backend's choice.")
    kv_dtype: Literal["auto", "bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e4m3fnuz"] = "auto"
    """What KV is stored in; auto is the model's dtype."""

    @check(mode="after")
    def _contradictions(self) -> Self:
        if self.fraction is not None and self.kv_gib is not None:
            raise ValueError("fraction and kv_gib both size the KV pages; keep one")
        return self


class ServerSection(Section):
    """The HTTP side."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(30000, description="Port to listen on; 0 takes a free one.")
    workers: PositiveInt = Field(1, description="API processes.")
    strict_fields: bool = Field(False, description="Refuse request fields nobody knows, instead of warning once.")
    access_log: bool = Field(False, description="One line a request.")
    api_key: str | None = Field(None, repr=False, description="Clients must send it as a bearer token.")


class Settings(Section):
    """All tables of the file. Frozen, and survives JSON, so that child processes get it whole.

    Built by `load_settings`, or by `model_validate*` in a child, which reads no environment and no file.
    """

    model: ModelSection
    platform: OnePlugin = OnePlugin()
    attention: AttentionSection = AttentionSection()
    recurrent: OnePlugin = OnePlugin()
    prefix_cache: OnePlugin = OnePlugin()
    graph_runner: PluginList = PluginList()
    model_loader: PluginList = PluginList()
    transport: OnePlugin = OnePlugin()
    ops: PluginList = PluginList()
    models: PluginList = PluginList()
    routes: PluginList = PluginList()
    parallel: ParallelSection = ParallelSection()
    scheduler: SchedulerSection = SchedulerSection()
    memory: MemorySection = MemorySection()
    server: ServerSection = ServerSection()
    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def origin(self) -> Origin:
        """Where each setting was written; empty in a child process."""
        return self._origin


def load_settings(
    path: Path | None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings of `--set a.b=c` over `SRT_A__B` over the file over `base` over the defaults.

    Raises `ConfigError` with place, cause and remedy for all mistakes that are found.
    """
    file, places = _read(path) if path else ({}, {})
    given = [*_variables(os.environ if environ is None else environ), *map(_set, sets)]
    origin = Origin({(): str(path or "settings")} | places | {key: place for place, key, _ in given})
    layers = [{"model": {}}, base or {}, file, *(_nested(*one) for one in given)]
    settings = validated(Settings, reduce(_over, layers), origin)
    settings._origin = origin
    return settings


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables as one: what `above` says wins."""
    merged = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            merged[key] = _over(below[key], above[key])
    return merged


def _read(path: Path) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """A file's tables, and the place of each key."""
    try:
        text = path.read_text("utf-8")
        return tomllib.loads(text), {key: f"{path}:{line}" for key, line in key_lines(text).items()}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), f"is not valid TOML: {error}") from None


def _set(text: str) -> tuple[str, KeyPath, str]:
    """Place, key and value of `--set a.b=c`."""
    key, equals, value = (part.strip() for part in text.partition("="))
    path = tuple(key.split("."))
    if not equals or not all(path):
        raise ConfigError("--set", f'"{text}" is not of the form a.b=value', "e.g. --set server.port=30001")
    return f"--set {key}", path, value


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, KeyPath, str]]:
    """Name, key and value of every `SRT_A__B` that is set, a table before its keys; an unknown table is an error.

    Other `SRT_` names are not ours.
    """
    for name in sorted(name for name, value in environ.items() if value and name.upper().startswith(PREFIX)):
        section, *rest = name.lower().removeprefix(PREFIX.lower()).split("__")
        if section in Settings.model_fields:
            yield name, (section, *rest), environ[name]
        elif rest:
            raise ConfigError(name, f'there is no table "{section}"', did_you_mean(section, Settings.model_fields))


def _nested(place: str, path: KeyPath, text: str) -> dict[str, Any]:
    """Tables that have `text` at `path`. What opens like a TOML array or string, or like a JSON object, is one."""
    try:
        value: Any = tomllib.loads(f"x = {text}")["x"] if text.startswith(("[", '"', "'")) else text
        value = json.loads(text) if text.startswith("{") else value
    except ValueError as error:
        raise ConfigError(place, str(error), "a list or a quoted text is written as in TOML, a table as JSON") from None
    return reduce(lambda inner, name: {name: inner}, reversed(path), value)
