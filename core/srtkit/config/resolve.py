"""Settings, plugins and model facts → `EngineConfig`: a pure function, run before any weight is read.

Everything that `auto` or None stood for gets its value here, every cross-kind condition is checked, and
each refusal names both sides. Parent and children call it with equal arguments and get equal results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from srtkit.config.memory import GIB, MemoryPlan, plan_memory, token_bytes
from srtkit.config.settings import Settings
from srtkit.plugins.loaded import LoadedPlugin, LoadedPlugins
from srtkit.spec.attention import LayerGroup, check_spec
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import CaptureLevel, GraphRunnerDescriptor
from srtkit.spec.kv import Component, KVLayout, Plane, negotiate
from srtkit.spec.models import ModelPlan, ModelsDescriptor, PlanRequest
from srtkit.spec.platform import PlatformDefaults
from srtkit.spec.prefix_cache import CacheCapabilities
from srtkit.spec.recurrent import RecurrentCapabilities, RecurrentSpec
from srtkit.spec.step_plan import StepKey

T = TypeVar("T")
Backends = tuple[LoadedPlugin, ...]
LEVELS: tuple[CaptureLevel, ...] = ("never", "one_token", "uniform", "any")


@dataclass(frozen=True)
class GroupChoice:
    """A layer group, the layout its pages have, and the plugins that attend over it, see `choose_attention`."""

    group: LayerGroup
    layout: KVLayout
    backends: Backends


@dataclass(frozen=True)
class RecurrentChoice:
    """Recurrent layers of one spec, the planes of a layer's state slot, the plugin and what it `can`."""

    spec: RecurrentSpec
    layers: tuple[int, ...]
    planes: tuple[Plane, ...]
    plugin: LoadedPlugin
    can: RecurrentCapabilities


@dataclass(frozen=True)
class RunnerChoice:
    """A graph runner and the keys it captures, in the file's order; `cuts`: attention and the like stay outside."""

    plugin: LoadedPlugin
    keys: tuple[StepKey, ...]
    cuts: bool


@dataclass(frozen=True)
class EngineConfig:
    """All an engine needs to be built, decided. A sentence each: `passed_over` says why attention plugins named before
    the chosen one do not serve this model, `notes` where a setting gets less than it asks for.
    """

    model: ModelPlan
    config: Mapping[str, Any]
    models: LoadedPlugin
    groups: tuple[GroupChoice, ...]
    recurrent: tuple[RecurrentChoice, ...]
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
    can: CacheCapabilities = cache.descriptor.capabilities(cache.options)
    _check_cache(cache, can, plan)

    def serve_with(backends: Backends) -> tuple[int, tuple[GroupChoice, ...]]:
        page = page_size(settings, loaded, backends, facts)
        return page, _groups(plan, backends, loaded.needed("attention"), page, facts)

    (backend, *others), (page, groups), refusals = choose_attention(loaded, serve_with)
    scheduler = settings.scheduler
    limits = Limits(
        max_rows=scheduler.max_running,
        max_tokens=max(scheduler.chunk_tokens, scheduler.max_running),
        max_context=min(settings.model.max_context or plan.max_context, plan.max_context),
        page_size=page,
        depth=scheduler.depth if scheduler.depth is not None else int(facts.async_launch),
    )
    recurrent = _recurrent(plan, loaded, facts)
    shadowed = (*loaded.all("attention", "shadow"), backend)[0]
    recorded, capture = _capture(facts, shadowed, others, recurrent)
    runners = _runners(loaded, limits, facts, capture)
    sizes = 4 * plan.vocab_size, token_bytes(plan)
    captured = sum(one.plugin.descriptor.memory(one.keys, *sizes) for one in runners)
    page_bytes = _page_bytes(plan, groups, recurrent)
    caches = (cache, *loaded.needed("prefix_cache"))
    host = sum(one.descriptor.host_bytes(one.options) for one in caches)
    memory = plan_memory(settings.memory, facts, defaults, limits, plan, page_bytes, captured, host)
    idle = [one.plugin.wired.part for one in runners[:-1] if not one.keys and not one.cuts and capture == "never"]
    notes = _notes(settings, plan, limits, memory)
    notes += tuple(f"{part} captures nothing: {recorded.wired.part} lets no step be recorded" for part in idle)
    spare = loaded.all("recurrent") if not recurrent else ()
    notes += tuple(f"{one.wired.part} is not used: {plan.architecture} has no recurrent layers" for one in spare)
    limits = replace(limits, max_context=min(limits.max_context, memory.longest(page)))
    passed = tuple(f"attention falls back to {backend.wired.offer.name}: {r.part} {r.cause}" for r in refusals)
    shares = bool(can.shares)
    return EngineConfig(plan, config, models, groups, recurrent, runners, limits, memory, shares, passed, notes)


def _capture(
    facts: DeviceFacts, backend: LoadedPlugin, others: Sequence[LoadedPlugin], recurrent: Sequence[RecurrentChoice]
) -> tuple[LoadedPlugin, CaptureLevel]:
    """The least that any backend lets be recorded, and which one that is; `others` have rows of every mixed step."""
    capture: CaptureLevel = backend.descriptor.capabilities(facts).capture
    if any(one.descriptor.capabilities(facts).capture != "any" for one in others):
        capture = "uniform" if capture == "any" else capture
    levels = [(backend, capture), *((one.plugin, one.can.capture) for one in recurrent)]
    return min(levels, key=lambda pair: LEVELS.index(pair[1]))


def _page_bytes(
    plan: ModelPlan, groups: Sequence[GroupChoice], recurrent: Sequence[RecurrentChoice]
) -> dict[Component, int]:
    """Bytes of a page of each component, in all its layers."""
    sizes: dict[Component, int] = {}
    for component in plan.components:
        own = [one for one in groups if one.group.spec.component == component.name]
        sizes[component] = sum(one.layout.page_bytes * len(one.group.layers) for one in own)
        if component.kind == "slot":
            sizes[component] = sum(plane.page_bytes * len(one.layers) for one in recurrent for plane in one.planes)
    return sizes


def _runners(
    loaded: LoadedPlugins, limits: Limits, facts: DeviceFacts, capture: CaptureLevel
) -> tuple[RunnerChoice, ...]:
    """Each with the keys that none before it has. What is not recorded restricts nothing."""
    runners: list[RunnerChoice] = []
    for plugin in loaded.all("graph_runner"):
        taken = {key for one in runners for key in one.keys}
        cuts = bool(plugin.descriptor.capabilities(facts).cuts)
        keys = plugin.descriptor.keys(limits, "any" if cuts else capture, plugin.options)
        runners.append(RunnerChoice(plugin, tuple(key for key in keys if key not in taken), cuts))
    if runners[-1].keys:
        cause = f"{runners[-1].plugin.wired.part} is the last, and runs only what it has captured"
        raise Unsupported("graph_runner.use", cause, 'end the list with "eager"')
    return tuple(runners)


def _notes(settings: Settings, plan: ModelPlan, limits: Limits, memory: MemoryPlan) -> tuple[str, ...]:
    asked, held = settings.model.max_context or 0, memory.longest(limits.page_size)
    spare = int((settings.memory.kv_gib or 0) * GIB) - memory.kv
    most, context = plan.max_context, limits.max_context
    notes = (
        (asked > most, f"model.max_context {asked:,} is beyond the model's {most:,}, which holds"),
        (context > held, f"the context is {held:,} tokens, not {context:,}: the KV pages hold no more"),
        (spare >= memory.a_page_each, f"KV pages take {memory.kv / GIB:.2f} GiB, {memory.reason}"),
    )
    return tuple(note for applies, note in notes if applies)


def _plan_model(loaded: LoadedPlugins, request: PlanRequest) -> tuple[LoadedPlugin, ModelPlan]:
    named: Sequence[str] = request.config.get("architectures") or ()
    known: set[str] = set()
    for plugin in loaded.all("models"):
        descriptor: ModelsDescriptor = plugin.descriptor
        known |= descriptor.architectures
        if not descriptor.architectures.isdisjoint(named):
            return plugin, descriptor.plan(request)
    cause = f"no installed model plugin knows the architecture {', '.join(named) or '(none named in config.json)'}"
    raise Unsupported("models", cause, f"known: {', '.join(sorted(known))}")


def _check_cache(cache: LoadedPlugin, can: CacheCapabilities, plan: ModelPlan) -> None:
    """Raise `Unsupported` if the cache does not keep a component of the model."""
    for component in plan.components:
        if component.reach not in can.reaches:
            cause = (
                f'does not keep pages of reach "{component.reach}", which {plan.architecture} has in "{component.name}"'
            )
            remedy = 'name a cache that does, or prefix_cache.use = "chunk", which reuses nothing'
            raise Unsupported(cache.wired.part, cause, remedy)


def _recurrent(plan: ModelPlan, loaded: LoadedPlugins, facts: DeviceFacts) -> tuple[RecurrentChoice, ...]:
    """Recurrent layers by spec. Raises `PluginNotFound` when no backend is named, `Unsupported` when it cannot."""
    choices = []
    for spec, layers in _by_spec(plan.recurrent).items():
        plugin = loaded.one("recurrent")
        can: RecurrentCapabilities = plugin.descriptor.capabilities(facts)
        if missing := {*(spec.features - can.features), *({spec.dtype} - can.dtypes)}:
            cause = f"does not compute {', '.join(missing)}, which {plan.architecture} needs in layer {layers[0]}"
            raise Unsupported(plugin.wired.part, cause, "name another recurrent backend")
        planes = tuple(plugin.descriptor.state_layouts(spec))
        choices.append(RecurrentChoice(spec, layers, planes, plugin, can))
    return tuple(choices)


def _by_spec(specs: Mapping[int, T]) -> dict[T, tuple[int, ...]]:
    """Layers of equal spec, by spec, in the order of the first layer of each."""
    return {spec: tuple(layer for layer, one in specs.items() if one == spec) for spec in specs.values()}


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
    backends = (*backends, *loaded.needed("attention"))
    taken = cache.descriptor.capabilities(cache.options).page_sizes
    offered = [backend.descriptor.capabilities(facts).page_sizes for backend in backends]
    for size in offered[0]:
        if wanted in (None, size) and all(size in sizes for sizes in (taken, *offered)):
            return int(size)
    lists = (", ".join(map(str, sizes[:12])) + (" …" if len(sizes) > 12 else "") for sizes in offered)
    what = " and ".join(f"{one.wired.part} ({sizes})" for one, sizes in zip(backends, lists, strict=True))
    cause = f"{wanted or 'no size'} suits both {what} and {cache.wired.part} ({taken.start} … {taken.stop - 1})"
    raise Unsupported("memory.page_size", cause, "choose a size from both lists")


def _groups(
    plan: ModelPlan, backends: Backends, needed: Backends, page: int, facts: DeviceFacts
) -> tuple[GroupChoice, ...]:
    """Layers of equal spec form a group; every group gets the layout that its backends and all they need share."""
    choices = []
    for number, (spec, layers) in enumerate(_by_spec(plan.attention).items()):
        offers = []
        for part, descriptor in ((one.wired.part, one.descriptor) for one in (*backends, *needed)):
            if problem := check_spec(part, spec, descriptor.capabilities(facts)):
                cause = f"{problem}, which {plan.architecture} needs in layer {layers[0]}"
                raise Unsupported(part, cause, "name another attention backend")
            offers.append((part, descriptor.kv_layouts(spec, page, facts)))
        group = LayerGroup(f"{spec.component}.{number}", spec, layers)
        choices.append(GroupChoice(group, negotiate(offers), backends))
    return tuple(choices)
