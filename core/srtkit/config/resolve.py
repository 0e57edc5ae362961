"""Settings, plugins and model facts → `EngineConfig`: a pure function, run before any weight is read.

Everything that `auto` or None stood for gets its value here, every cross-kind condition is checked, and
each refusal names both sides. Parent and children call it with equal arguments and get equal results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from srtkit.config.memory import GIB, MemoryPlan, plan_memory
from srtkit.config.settings import Settings
from srtkit.plugins.loaded import LoadedPlugin, LoadedPlugins
from srtkit.spec.attention import LayerGroup, check_spec
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import CaptureLevel, GraphRunnerDescriptor
from srtkit.spec.kv import FULL, ITEM_BYTES, KVLayout, negotiate
from srtkit.spec.models import ModelPlan, ModelsDescriptor, PlanRequest
from srtkit.spec.platform import PlatformDefaults
from srtkit.spec.step_plan import StepKey

T = TypeVar("T")
Backends = tuple[LoadedPlugin, ...]


@dataclass(frozen=True)
class GroupChoice:
    """A layer group, the layout its pages have, and the plugins that attend over it, see `choose_attention`."""

    group: LayerGroup
    layout: KVLayout
    backends: Backends


@dataclass(frozen=True)
class RunnerChoice:
    """A graph runner and the keys it captures, in the file's order."""

    plugin: LoadedPlugin
    keys: tuple[StepKey, ...]


@dataclass(frozen=True)
class EngineConfig:
    """All an engine needs to be built, decided. A sentence each: `passed_over` says why attention plugins named before
    the chosen one do not serve this model, `notes` where a setting gets less than it asks for.
    """

    model: ModelPlan
    config: Mapping[str, Any]
    models: LoadedPlugin
    groups: tuple[GroupChoice, ...]
    runners: tuple[RunnerChoice, ...]
    limits: Limits
    memory: MemoryPlan
    shares: bool
    passed_over: tuple[str, ...]
    notes: tuple[str, ...]

    def fit(self, wanted: StepKey) -> StepKey:
        """The key a step runs at: the first runner that has one; eager, the last, takes any."""
        for runner in self.runners:
            descriptor: GraphRunnerDescriptor = runner.plugin.descriptor
            if (key := descriptor.fit(wanted, runner.keys)) is not None:
                return key
        return wanted


def resolve(
    settings: Settings, loaded: LoadedPlugins, facts: DeviceFacts, defaults: PlatformDefaults, config: Mapping[str, Any]
) -> EngineConfig:
    """Decide all that `check` has left. Raises `Unsupported`, `ConfigError` or `OutOfMemory`; touches nothing."""
    dtype = defaults.dtype if settings.model.dtype == "auto" else settings.model.dtype
    kv_dtype = dtype if settings.memory.kv_dtype == "auto" else settings.memory.kv_dtype
    models, plan = _plan_model(loaded, PlanRequest(config, dtype, kv_dtype))
    cache = loaded.one("prefix_cache")
    shares = bool(cache.descriptor.capabilities(cache.options).shares)

    def serve_with(backends: Backends) -> tuple[int, tuple[GroupChoice, ...]]:
        page = page_size(settings, loaded, backends, facts)
        return page, _groups(plan, backends, page, facts)

    (backend, *_), (page, groups), refusals = choose_attention(loaded, serve_with)
    scheduler = settings.scheduler
    limits = Limits(
        max_rows=scheduler.max_running,
        max_tokens=max(scheduler.chunk_tokens, scheduler.max_running),
        max_context=min(settings.model.max_context or plan.max_context, plan.max_context),
        page_size=page,
        depth=scheduler.depth if scheduler.depth is not None else int(facts.async_launch),
    )
    page_bytes = sum(choice.layout.page_bytes * len(choice.group.layers) for choice in groups)
    runners = _runners(loaded, limits, backend.descriptor.capabilities(facts).capture)
    token_bytes = 4 * plan.vocab_size + plan.hidden_size * ITEM_BYTES[plan.dtype]
    captured = sum(one.plugin.descriptor.memory(one.keys, token_bytes) for one in runners)
    memory = plan_memory(settings.memory, facts.memory_bytes, defaults, limits, plan, page_bytes, captured)
    idle = (one.plugin.wired.part for one in runners[:-1] if not one.keys)
    notes = (*_notes(settings, plan, limits, memory), *unused(loaded))
    notes += tuple(f"{part} captures nothing: {backend.wired.part} lets no step be recorded" for part in idle)
    limits = replace(limits, max_context=min(limits.max_context, (memory.pages - 1) * page))
    passed_over = tuple(f"attention falls back to {backend.wired.offer.name}: {r.part} {r.cause}" for r in refusals)
    return EngineConfig(plan, config, models, groups, runners, limits, memory, shares, passed_over, notes)


def _runners(loaded: LoadedPlugins, limits: Limits, capture: CaptureLevel) -> tuple[RunnerChoice, ...]:
    """Each with the keys that none before it has. Mixed steps are not asked for: they would share a plan."""
    level: CaptureLevel = "uniform" if capture == "any" else capture
    runners: list[RunnerChoice] = []
    for plugin in loaded.all("graph_runner"):
        taken = {key for one in runners for key in one.keys}
        keys = plugin.descriptor.keys(limits, level, plugin.options)
        runners.append(RunnerChoice(plugin, tuple(key for key in keys if key not in taken)))
    if runners[-1].keys:
        cause = f"{runners[-1].plugin.wired.part} is the last, and runs only what it has captured"
        raise Unsupported("graph_runner.use", cause, 'end the list with "eager"')
    return tuple(runners)


def _notes(settings: Settings, plan: ModelPlan, limits: Limits, memory: MemoryPlan) -> tuple[str, ...]:
    asked, held = settings.model.max_context or 0, (memory.pages - 1) * limits.page_size
    wanted = int((settings.memory.kv_gib or 0) * GIB) // memory.page_bytes
    most, context = plan.max_context, limits.max_context
    notes = (
        (asked > most, f"model.max_context {asked:,} is beyond the model's {most:,}, which holds"),
        (context > held, f"the context is {held:,} tokens, not {context:,}: the KV pages hold no more"),
        (wanted > memory.pages, f"KV pages take {memory.kv / GIB:.2f} GiB, {memory.reason}"),
    )
    return tuple(note for applies, note in notes if applies)


def unused(loaded: LoadedPlugins) -> tuple[str, ...]:
    """A note on each plugin that was named for nothing: `_plan_model` refuses the models that would use it."""
    note = "is not used: no model with recurrent layers is served yet"
    return tuple(f"{plugin.wired.part} {note}" for plugin in loaded.all("recurrent"))


def _plan_model(loaded: LoadedPlugins, request: PlanRequest) -> tuple[LoadedPlugin, ModelPlan]:
    named: Sequence[str] = request.config.get("architectures") or ()
    known: set[str] = set()
    for plugin in loaded.all("models"):
        descriptor: ModelsDescriptor = plugin.descriptor
        known |= descriptor.architectures
        if not descriptor.architectures.isdisjoint(named):
            plan = descriptor.plan(request)
            others = [component.name for component in plan.components if component != FULL]
            if others or plan.recurrent:
                what = f"the component {others[0]}" if others else "recurrent layers"
                cause = f"{plan.architecture} needs {what}, which no scheduler manages yet"
                raise Unsupported(plugin.wired.part, cause)
            return plugin, plan
    cause = f"no installed model plugin knows the architecture {', '.join(named) or '(none named in config.json)'}"
    raise Unsupported("models", cause, f"known: {', '.join(sorted(known))}")


def choose_attention(loaded: LoadedPlugins, attempt: Callable[[Backends], T]) -> tuple[Backends, T, list[Unsupported]]:
    """Of the alternatives the first that `attempt` takes, its result, and the refusals before it.

    An alternative is the backend of decode rows, and another one of all other rows if that is not the same.
    Raises the first refusal when none is taken, `PluginNotFound` when none is chosen.
    """
    refusals: list[Unsupported] = []
    decode, prefill = (loaded.all("attention", role) for role in ("decode", "prefill"))
    for use in loaded.all("attention") or [loaded.one("attention")]:
        pair = (*decode, use)[0], (*prefill, use)[0]
        backends = pair[: 1 + (pair[0].wired.part != pair[1].wired.part)]
        try:
            return backends, attempt(backends), refusals
        except Unsupported as refusal:
            refusals.append(refusal)
    raise refusals[0]


def page_size(settings: Settings, loaded: LoadedPlugins, backends: Backends, facts: DeviceFacts) -> int:
    """The size of a page that file, backends and cache take and the first backend likes best. Raises `Unsupported`."""
    cache, wanted = loaded.one("prefix_cache"), settings.memory.page_size
    taken = cache.descriptor.capabilities(cache.options).page_sizes
    offered = [backend.descriptor.capabilities(facts).page_sizes for backend in backends]
    for size in offered[0]:
        if wanted in (None, size) and all(size in sizes for sizes in (taken, *offered)):
            return int(size)
    lists = (", ".join(map(str, sizes[:12])) + (" …" if len(sizes) > 12 else "") for sizes in offered)
    what = " and ".join(f"{one.wired.part} ({sizes})" for one, sizes in zip(backends, lists, strict=True))
    cause = f"{wanted or 'no size'} suits both {what} and {cache.wired.part} ({taken.start} … {taken.stop - 1})"
    raise Unsupported("memory.page_size", cause, "choose a size from both lists")


def _groups(plan: ModelPlan, backends: Backends, page: int, facts: DeviceFacts) -> tuple[GroupChoice, ...]:
    """Layers of equal spec form a group; every group gets the layout all its users share."""
    by_spec: dict[Any, list[int]] = {}
    for layer, spec in plan.attention.items():
        by_spec.setdefault(spec, []).append(layer)
    choices = []
    for number, (spec, layers) in enumerate(by_spec.items()):
        offers = []
        for part, descriptor in ((one.wired.part, one.descriptor) for one in backends):
            if problem := check_spec(part, spec, descriptor.capabilities(facts)):
                cause = f"{problem}, which {plan.architecture} needs in layer {layers[0]}"
                raise Unsupported(part, cause, "name another attention backend")
            offers.append((part, descriptor.kv_layouts(spec, page, facts)))
        group = LayerGroup(f"{spec.component}.{number}", spec, tuple(layers))
        choices.append(GroupChoice(group, negotiate(offers), backends))
    return tuple(choices)
