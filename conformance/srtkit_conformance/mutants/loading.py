"""Light modules with one fault each, made by editing the text of a toy plugin."""

from __future__ import annotations

from dataclasses import replace

from srtkit_conformance.kits.light import LightPlugin
from srtkit_conformance.mutant import mutant, variant


@mutant(
    "no_core_requirement", of="toy", sentence="does not say that it needs srtkit-core", killed_by=("loading.metadata",)
)
def no_core_requirement(toy: LightPlugin) -> LightPlugin:
    """The requirement's line is missing."""
    return replace(toy, metadata=toy.metadata.replace("Requires-Dist: srtkit-core>=0.1\n", ""))


@mutant("torch_at_import", of="toy", sentence="imports torch in the light module", killed_by=("loading.light",))
def torch_at_import(toy: LightPlugin) -> LightPlugin:
    """A torch of one line, so that the proof needs none."""
    return replace(toy.with_statement("import torch"), others=(("torch", "class Tensor: pass"),))


@mutant(
    "torch_when_asked",
    of="toy",
    sentence="imports torch in capabilities()",
    killed_by=("loading.light",),
    note="the same clause, later",
)
def torch_when_asked(toy: LightPlugin) -> LightPlugin:
    """Light when imported, heavy when asked."""
    edited = toy.edited('    no = No("it keeps nothing")', '    import torch\n\n    no = No("it keeps nothing")')
    return replace(edited, others=(("torch", "class Tensor: pass"),))


@mutant("slow_import", of="toy", sentence="takes seconds to import", killed_by=("loading.import_time",))
def slow_import(toy: LightPlugin) -> LightPlugin:
    """As a large library would."""
    return toy.with_statement("import time; time.sleep(1.2)")


@mutant("patches_core", of="toy", sentence="replaces a function of core", killed_by=("loading.no_patching",))
def patches_core(toy: LightPlugin) -> LightPlugin:
    """A wrapper around the check of a capability."""
    return toy.with_statement("import srtkit.spec.capabilities as m; m.require = lambda *arguments: None")


@mutant("prints", of="toy", sentence="prints a banner when it is imported", killed_by=("loading.silent",))
def prints(toy: LightPlugin) -> LightPlugin:
    """To the standard output."""
    return toy.with_statement("print('Welcome to the toy')")


@mutant(
    "reads_environment",
    of="toy",
    sentence="is switched by an environment variable",
    killed_by=("loading.no_environment",),
)
def reads_environment(toy: LightPlugin) -> LightPlugin:
    """Read when it is asked what it can do."""
    return toy.edited('    no = No("it', '    import os\n\n    os.environ.get("TOY_PAGES")\n    no = No("it')


@mutant(
    "configures_logging",
    of="toy",
    sentence="configures logging for the process",
    killed_by=("loading.no_side_effects",),
)
def configures_logging(toy: LightPlugin) -> LightPlugin:
    """basicConfig at import."""
    return toy.with_statement("import logging; logging.basicConfig(level='INFO')")


@mutant(
    "starts_thread",
    of="toy",
    sentence="starts a thread when it is imported",
    killed_by=("loading.no_side_effects",),
    note="the same clause by another way",
)
def starts_thread(toy: LightPlugin) -> LightPlugin:
    """A watcher that never ends."""
    return toy.with_statement("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")


@mutant("two_hooks", of="toy", sentence="implements the hooks of two kinds", killed_by=("loading.one_hook",))
def two_hooks(toy: LightPlugin) -> LightPlugin:
    """A transport, too."""
    return toy.with_statement("@hookimpl\ndef srtkit_transport():\n    return None")


@mutant(
    "other_major",
    of="toy",
    sentence="speaks contract 2.0 under the group of 1",
    killed_by=("loading.contract", "loading.load"),
)
def other_major(toy: LightPlugin) -> LightPlugin:
    """A lie about the contract."""
    return toy.edited('contract="1.0"', 'contract="2.0"')


@mutant(
    "options_no_schema", of="toy", sentence="has an option that JSON cannot hold", killed_by=("loading.options_schema",)
)
def options_no_schema(toy: LightPlugin) -> LightPlugin:
    """A callable as an option."""
    return toy.edited("    names: tuple[str, ...] = Field((), ", "    names: type = Field(int, ")


@mutant(
    "swallows_options",
    of="toy",
    sentence="accepts options that it does not have",
    killed_by=("loading.options_refused",),
)
def swallows_options(toy: LightPlugin) -> LightPlugin:
    """Extra keys are ignored."""
    return toy.edited('extra="forbid"', 'extra="ignore"')


@mutant(
    "mutable_options", of="toy", sentence="has options that can be changed later", killed_by=("loading.options_frozen",)
)
def mutable_options(toy: LightPlugin) -> LightPlugin:
    """Not frozen."""
    return toy.edited(", frozen=True", "")


@mutant(
    "needs_keep_count", of="toy", sentence="needs another plugin on every second call", killed_by=("loading.needs",)
)
def needs_keep_count(toy: LightPlugin) -> LightPlugin:
    """State in a pure function."""
    counted = toy.with_statement("CALLS = []")
    return counted.edited(
        "    return ()\n",
        '    CALLS.append(1)\n    return () if len(CALLS) % 2 else (Need("inner", "prefix_cache", "chunk"),)\n',
    )


@mutant("capabilities_by_count", of="toy", sentence="declares less each time it is asked", killed_by=("loading.pure",))
def capabilities_by_count(toy: LightPlugin) -> LightPlugin:
    """State in a pure function."""
    counted = toy.with_statement("CALLS = []").edited('    no = No("it', '    CALLS.append(1)\n    no = No("it')
    return counted.edited("range(1, 17)", "range(1, 17 + len(CALLS))")


@mutant(
    "capabilities_by_process",
    of="toy",
    sentence="declares something else in each process",
    killed_by=("loading.child",),
)
def capabilities_by_process(toy: LightPlugin) -> LightPlugin:
    """The process id decides."""
    return toy.edited('    no = No("it', '    import os\n\n    no = No(f"{os.getpid()}: it')


@mutant("hook_once", of="toy", sentence="can be loaded once only", killed_by=("loading.load",))
def hook_once(toy: LightPlugin) -> LightPlugin:
    """A registration that fails the second time."""
    counted = toy.with_statement("CALLS = []")
    body = '    """Offers the toy."""\n'
    return counted.edited(body, f"{body}    assert not CALLS, 'registered already'\n    CALLS.append(1)\n")


@variant("newer_minor", of="toy", sentence="speaks a newer minor and requires nothing of it")
def newer_minor(toy: LightPlugin) -> LightPlugin:
    """Allowed: what is new does not reach it."""
    return toy.edited('contract="1.0"', 'contract="1.7"')


@variant("door_object", of="toy", sentence="has its hook on an object, not on the module")
def door_object(toy: LightPlugin) -> LightPlugin:
    """One module can hold several doors."""
    hook = toy.source[toy.source.index("@hookimpl") :]
    method = hook.replace("srtkit_prefix_cache()", "srtkit_prefix_cache(self)")
    body = "".join(f"    {line}\n" if line else "\n" for line in method.splitlines())
    source = toy.source.replace(hook, f"class Door:\n{body}\n\ndoor = Door()\n")
    return replace(toy, source=source, value="srtkit_toy:door")


@variant("own_logger", of="toy", sentence="has a logger and constants, and uses much of the standard library")
def own_logger(toy: LightPlugin) -> LightPlugin:
    """None of it changes the process."""
    return toy.with_statement(
        "import asyncio, logging, sqlite3\nLOG = logging.getLogger(__name__)\nTABLE = {n: n for n in range(9)}"
    )
