"""Loading and hygiene: what holds for the light module of every kind, on any machine (level 0).

The ids get the kind's name in front: "attention.loading.light".
"""

from __future__ import annotations

import re

from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.check import Informational, Outcome, check, expect
from srtkit_conformance.kits.light import LightPlugin
from srtkit_conformance.kits.loading import observe
from srtkit_conformance.target import Target

IMPORT_SECONDS = 1.0


@check(
    "loading.metadata",
    level=0,
    clause="loading: the metadata alone says what is offered, and what it needs",
    explain="""The distribution's metadata must require srtkit-core and a Python version, and the entry point's name
    must be in the form that settings files use: lower case, hyphens. After a change of pyproject.toml an editable
    install must be repeated, because metadata is written at install.""",
)
def metadata(target: Target) -> Outcome:
    """Requirements and the entry point's name."""
    said = observe(target).first["metadata"]
    required = {re.sub(r"[-_.]+", "-", name).lower() for name in said["requires"]}
    expect("srtkit-core" in required, "does not require srtkit-core", observed=", ".join(sorted(required)) or "nothing")
    expect(said["python"], "does not say which Python it needs (requires-python)")
    bad = [name for name in said["names"] if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)]
    expect(not bad, "entry-point names are lower case with hyphens", observed=", ".join(bad))
    return None


@check(
    "loading.light",
    level=0,
    clause="loading: the light module, and what its descriptor calls, imports neither torch nor a vendor library",
    explain="""An import at the top of the light module or of a module that it imports. Move it into the module that
    build() imports; names for annotations go under TYPE_CHECKING.""",
)
def light(target: Target) -> Outcome:
    """Modules after the import and after every pure function was called."""
    heavy = observe(target).first["heavy"]
    expect(not heavy, "importing the light module imports heavy ones", observed=", ".join(heavy), limit="none")
    return None


@check(
    "loading.import_time",
    level=0,
    clause="loading: the light module is imported in no time",
    explain="""`srt plugins show`, `srt config check` and every child process import it. Look at
    `python -X importtime -c "import your_plugin"`: usually one library that only build() needs.""",
)
def import_time(target: Target) -> Outcome:
    """After the contract itself has been imported; a second try for the slow."""
    observed = observe(target)
    seconds = float(observed.first["import_seconds"])
    if seconds > IMPORT_SECONDS:  # the machine may be busy, or the files not cached yet
        seconds = min(seconds, float(observed.second["import_seconds"]))
    expect(
        seconds <= IMPORT_SECONDS, "the light module is slow", observed=f"{seconds:.2f} s", limit=f"{IMPORT_SECONDS} s"
    )
    return {"import_ms": round(seconds * 1e3, 1)}


@check(
    "loading.no_patching",
    level=0,
    clause="loading: a plugin replaces nothing in core or torch",
    explain="""A function, class or method of srtkit is another object after the import. What you need to change is
    missing in the contract: ask for it.""",
)
def no_patching(target: Target) -> Outcome:
    """Core's members before and after the import."""
    problem = observe(target).first["patches"]
    expect("replaced" not in problem, "it patches core", observed=problem)
    return None


@check(
    "loading.silent",
    level=0,
    clause="loading: importing a plugin prints nothing",
    explain="""A print(), a banner of a library, or a warning. Commands print JSON to the standard output, which a
    plugin's line makes unreadable.""",
)
def silent(target: Target) -> Outcome:
    """Both standard streams, below Python."""
    output = observe(target).first["output"].strip()
    expect(not output, "loading prints something", observed=output[:200])
    return None


@check(
    "loading.no_environment",
    level=0,
    clause="loading: a plugin is configured by its options, not by environment variables",
    explain="""The light module or its descriptor reads os.environ. Make it an option: then it is validated, shown by
    `srt explain`, and the same in every process and on every host.""",
)
def no_environment(target: Target) -> Outcome:
    """Reads by modules of the plugin's own package."""
    reads = observe(target).first["reads"]
    expect(not reads, "reads environment variables", observed=", ".join(reads), limit="none")
    return None


@check(
    "loading.no_side_effects",
    level=0,
    clause="loading: importing a plugin changes nothing in the process",
    explain="""The import starts a thread, installs a signal or exception handler, configures logging, or changes the
    import path. Do it in build(), or leave it to core.""",
)
def no_side_effects(target: Target) -> Outcome:
    """State of the process before and after."""
    changed = observe(target).first["changed"]
    expect(not changed, "loading changes the process", observed=", ".join(changed))
    return None


@check(
    "loading.one_hook",
    level=0,
    clause="loading: an entry point leads to exactly one hook, that of its kind",
    explain="""A light module that implements two hooks belongs under two entry points that lead to two modules or
    objects ("package:object").""",
)
def one_hook(target: Target) -> Outcome:
    """The hooks that pluggy finds."""
    hooks = observe(target).described()["hooks"]
    expect(hooks == [f"srtkit_{_kind(target)}"], "the entry point must have one hook", observed=", ".join(hooks))
    return None


@check(
    "loading.contract",
    level=0,
    clause="loading: a descriptor says which version of the contract it speaks, and what it cannot do without",
    explain="""`contract` must be major.minor with the major of the entry point's group, and every name in `requires`
    a feature of that contract.""",
)
def contract(target: Target) -> Outcome:
    """Version and required features."""
    seen, ours = observe(target).described(), CONTRACTS[_kind(target)]
    version = re.fullmatch(r"(\d+)\.(\d+)", seen["contract"])
    expect(version is not None, "the contract version is no major.minor", observed=seen["contract"])
    assert version is not None
    expect(int(version[1]) == ours.major, "speaks another major", observed=seen["contract"], limit=ours.version)
    unknown = sorted({*seen["requires"]} - ours.features)
    expect(not unknown, f"requires features that {ours.kind} {ours.version} lacks", observed=", ".join(unknown))
    if int(version[2]) > ours.minor:
        return Informational(f"speaks {seen['contract']}, this core {ours.version}: newer features are not tested")
    return None


@check(
    "loading.options_schema",
    level=0,
    clause="loading: options have defaults and a JSON schema, and survive the way to a child process",
    explain="""The options model has a field without default, or of a type that JSON does not know (a callable, a
    torch.dtype). Use names, numbers, paths, lists and tables.""",
)
def options_schema(target: Target) -> Outcome:
    """Schema, defaults, and back from JSON."""
    seen = observe(target).described()
    expect(not seen["schema"], f"its options have no JSON schema: {seen['schema']}")
    expect(not seen["options"], f"its options cannot be made from defaults and from JSON: {seen['options']}")
    return None


@check(
    "loading.options_refused",
    level=0,
    clause="loading: an unknown option is refused",
    explain="""The model lacks ConfigDict(extra="forbid"). A misspelt option that is accepted is an option that
    silently does nothing.""",
)
def options_refused(target: Target) -> Outcome:
    """One unknown key."""
    expect(not observe(target).described()["swallows"], "accepts an option that it does not have")
    return None


@check(
    "loading.options_frozen",
    level=0,
    clause="loading: options are what the wiring plan says, for as long as the process runs",
    explain="""The model lacks ConfigDict(frozen=True). The plan's digest is compared between processes; options that
    change afterwards make it a lie.""",
)
def options_frozen(target: Target) -> Outcome:
    """The model's own setting."""
    expect(bool(observe(target).described()["frozen"]), "its options can be changed after they were made")
    return None


@check(
    "loading.needs",
    level=0,
    clause="loading: needs(options) is a pure function and names plugins of known kinds",
    explain="""needs() keeps state, changes the options it is given, or names a kind that does not exist. It is called
    in the parent only, and its answer is written into the plan.""",
)
def needs(target: Target) -> Outcome:
    """Called twice."""
    seen = observe(target).described()
    expect(not seen["needs"], f"needs() raised {seen['needs']}")
    expect(not seen["needs_differ"], "needs() answers differently the second time")
    expect(not seen["needs_change_options"], "needs() changes the options it is given")
    unknown = sorted({*seen["needs_kinds"]} - CONTRACTS.keys())
    expect(not unknown, "needs plugins of unknown kinds", observed=", ".join(unknown))
    return {"needs": len(seen["needs_kinds"])}


@check(
    "loading.pure",
    level=0,
    clause="loading: a descriptor is data and pure functions",
    explain="""What it declares depends on how often it is asked: a counter, a cache that is filled, a device that is
    probed. Decide by the facts and options that are passed in.""",
)
def pure(target: Target) -> Outcome:
    """Declarations, asked for twice."""
    seen = observe(target).described()
    expect(
        seen["declared"] == seen["declared_again"],
        "declares something else when asked again",
        observed=seen["declared_again"],
        limit=seen["declared"],
    )
    return None


@check(
    "loading.child",
    level=0,
    clause="loading: every process gets the same descriptor",
    explain="""What it declares depends on the process: its id, the time, the order of a set, the machine's state. The
    scheduler and the ranks would then plan for different plugins.""",
)
def child(target: Target) -> Outcome:
    """Declarations in two interpreters."""
    observed = observe(target)
    first, second = observed.described()["declared"], observed.second.get("declared")
    expect(first == second, "declares something else in another process", observed=second, limit=first)
    return None


@check(
    "loading.load",
    level=0,
    clause="loading: core loads it, again, and in a child process against the plan, with the same result",
    explain="""The message is that of core's loader. Often: a registration at import or in the hook that fails the
    second time, or a descriptor of another type than the hook's.""",
)
def load(target: Target) -> Outcome:
    """By core's own loader."""
    seen = observe(target).first
    expect(not seen["load"], f"core does not load it: {seen['load']}")
    expect(not seen["loads_differ"], "the second load gives another descriptor")
    return None


def _kind(target: Target) -> str:
    return "prefix_cache" if isinstance(target.descriptor, LightPlugin) else target.kind
