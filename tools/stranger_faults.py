"""Ten ways to break an attention plugin, and with which message and exit code each is met.

A fault edits the plugin's repository and then does what a user does. What it leaves is undone by the caller.
"""

from __future__ import annotations

from collections.abc import Callable

from tools.workshop import Workshop

LIGHT, HEAVY, PROJECT = "__init__.py", "backend.py", "pyproject.toml"
CONFIG = "mychip.toml"
CHECK = ("srt", "config", "check", CONFIG)
SERVE = ("srt", "serve", "--config", CONFIG, "--set", "server.port=0")
SETTINGS = """
[model]
source = "tiny"
dtype = "float32"

[model_loader]
use = "dummy"

[attention]
use = "mychip"

[attention.options.mychip]
score_dtype = "float64"
"""
MODEL = """{"architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
"""

Fault = Callable[[Workshop], str]


def lay_out(shop: Workshop) -> None:
    """The settings file that users of the plugin have, and a model without weights."""
    (shop.env.folder / CONFIG).write_text(SETTINGS)
    (shop.env.folder / "tiny").mkdir(exist_ok=True)
    (shop.env.folder / "tiny" / "config.json").write_text(MODEL)


def wrong_major(shop: Workshop) -> str:
    """Written for a contract that this core does not speak: refused by its metadata, so the module is not imported."""
    shop.edit(PROJECT, "srtkit.attention.v1", "srtkit.attention.v2")
    _at_import(shop, 'raise RuntimeError("imported")')
    shop.install()
    speaks = "error: attention:mychip: speaks attention v2, this core speaks v1"
    return shop.met(23, CHECK, speaks, f"{shop.distribution} 0.1.0", "remedy: pip install --upgrade srtkit-core")


def missing_device(shop: Workshop) -> str:
    """The driver's device is not there: found when the backend is built, by the plugin itself."""
    shop.edit(
        LIGHT,
        "    from srtkit_plugin_attention_mychip.backend",
        "    from srtkit.spec.errors import DeviceAbsent\n\n"
        '    raise DeviceAbsent("attention:mychip", "there is no /dev/mychip0", "modprobe mychip")\n'
        "    from srtkit_plugin_attention_mychip.backend",
    )
    return shop.met(25, SERVE, "error: attention:mychip: there is no /dev/mychip0", "remedy: modprobe mychip")


def import_error(shop: Workshop) -> str:
    """The light module does not import."""
    _at_import(shop, "import mychip_vendor")
    return shop.met(
        22,
        CHECK,
        "error: attention:mychip: raised ModuleNotFoundError: No module named 'mychip_vendor'",
        "entry point srtkit.attention.v1: mychip = srtkit_plugin_attention_mychip",
        "__init__.py",
        f"remedy: update or reinstall {shop.distribution}",
    )


def lying_capability(shop: Workshop) -> str:
    """Says that it understands windows, and computes without: only conformance can know."""
    shop.edit(LIGHT, "features=frozenset()", 'features=frozenset({"window"})')
    check = "attention.features.window"
    said = shop.met(1, ["srt", "conformance", "run", shop.part, "--only", check], f"fail           {check}")
    shop.met(0, ["srt", "conformance", "explain", check], "a window is W visible tokens, itself included")
    return said


def duplicate_name(shop: Workshop) -> str:
    """Another distribution offers the name: an error that names both, until the file says which."""
    rival = Workshop(shop.env, shop.kind, "rival")
    rival.make()
    rival.edit(PROJECT, '\nrival = "', '\nmychip = "')
    rival.install()
    try:
        both = (f"{shop.distribution} 0.1.0", f"{rival.distribution} 0.1.0")
        choice = f"{shop.distribution}:mychip"
        said = shop.met(24, CHECK, "attention:mychip: is offered more than once", *both, f'use = "{choice}"')
        shop.met(0, [*CHECK, "--set", f"attention.use={choice}"])
        return said
    finally:
        rival.pip("uninstall", "--yes", rival.distribution)


def patching_core(shop: Workshop) -> str:
    """Replaces a function of the contract by its own."""
    _at_import(shop, "import srtkit.spec.attention as contract\ncontract.check_spec = lambda part, spec, can: ''")
    return shop.met(22, CHECK, "attention:mychip: replaced srtkit.spec.attention.check_spec while loading")


def torch_at_import(shop: Workshop) -> str:
    """The light module is not light."""
    _at_import(shop, "import torch")
    return shop.met(
        22, CHECK, "attention:mychip: its light module imports torch", "remedy: import torch in the heavy module"
    )


def bad_options(shop: Workshop) -> str:
    """The user misspells an option of the plugin: the file's line, and the option that was meant."""
    (shop.env.folder / CONFIG).write_text(SETTINGS.replace("score_dtype", "score_dtpye"))
    line = SETTINGS.splitlines().index('score_dtype = "float64"') + 1
    where = f'error: {CONFIG}:{line}: unknown key "score_dtpye" in [attention.options.mychip]'
    return shop.met(10, CHECK, where, 'remedy: did you mean "score_dtype"?')


def missing_dependency(shop: Workshop) -> str:
    """Requires a library that was not installed with it, and meets that when the backend is built."""
    shop.edit(PROJECT, '    "torch>=2.11",', '    "torch>=2.11",\n    "mychip-runtime>=3",')
    shop.edit(HEAVY, "\nimport torch\n", "\nimport mychip_runtime\nimport torch\n")
    shop.install()
    raised = "error: attention:mychip: raised ModuleNotFoundError while starting: No module named 'mychip_runtime'"
    said = shop.met(22, SERVE, raised, f"{shop.distribution} 0.1.0, entry point", "remedy: ", "`pip check` says")
    shop.met(1, ["python", "-m", "pip", "check"], f"{shop.distribution} 0.1.0 requires mychip-runtime, which is not")
    return said


def slow_import(shop: Workshop) -> str:
    """Two seconds for every `srt config check` and every process: no error, but no certificate."""
    _at_import(shop, "import time\n\ntime.sleep(2)")
    check = "attention.loading.import_time"
    said = shop.met(
        1,
        ["srt", "conformance", "run", shop.part, "--level", "0"],
        f"fail           {check}",
        "the light module is slow",
        "limit 1.0 s",
        "no level reached",
    )
    shop.met(0, CHECK)
    return said


def _at_import(shop: Workshop, code: str) -> None:
    """Let the light module run `code` after its imports."""
    shop.edit(LIGHT, "\nDTYPES = ", f"\n{code}\n\nDTYPES = ")


FAULTS: tuple[Fault, ...] = (
    wrong_major,
    missing_device,
    import_error,
    lying_capability,
    duplicate_name,
    patching_core,
    torch_at_import,
    bad_options,
    missing_dependency,
    slow_import,
)
SLOW = frozenset({missing_device, lying_capability, missing_dependency, slow_import})
"""Those that start a server or the conformance suite."""
