"""Settings, plugins and model facts → `EngineConfig`: a pure function, run before any weight is read.

Everything that `auto` or None stood for gets its value here, every cross-kind condition is checked, and
each refusal names both sides. Parent and children call it with equal arguments and get equal results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from srtkit.config.memory import GIB, MemoryPlan, plan_memory
from srtkit.config.settings import Settings
from srtkit.plugins.loaded import LoadedPlugin, LoadedPlugins
from srtkit.plugins.wiring import ATTENTION_ROLES
from srtkit.spec.attention import AttentionCapabilities, LayerGroup, check_spec
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.graph_runner import GraphRunnerDescriptor
from srtkit.spec.kv import FULL, KVLayout, negotiate
from srtkit.spec.models import ModelPlan, ModelsDescriptor, PlanRequest
from srtkit.spec.platform import PlatformDefaults
from srtkit.spec.prefix_cache import CacheCapabilities
from srtkit.spec.step_plan import StepKey


@dataclass(frozen=True)
class GroupChoice:
    """A layer group, the layout its pages have, and the plugin that attends over it."""

    group: LayerGroup
    layout: KVLayout
    backend: LoadedPlugin


@dataclass(frozen=True)
class RunnerChoice:
    """A graph runner and the keys it captures, in the file's order."""

    plugin: LoadedPlugin
    keys: tuple[StepKey, ...]


@dataclass(frozen=True)
class EngineConfig:
    """All an engine needs to be built, decided. `passed_over`: why attention plugins named before the chosen one do
    not serve this model, a sentence each.
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

    def fit(self, wanted: StepKey) -> StepKey:
        """The key a step runs at: the first runner that has one; eager, the last, takes any."""
        for runner in self.runners:
            descriptor: GraphRunnerDescriptor = runner.plugin.descriptor
            if (key := descriptor.fit(wanted, runner.keys)) is not None:
                return key
        return wanted


def resolve(
    settings: Settings,
    loaded: LoadedPlugins,
    facts: DeviceFacts,
    defaults: PlatformDefaults,
    config: Mapping[str, Any],
) -> EngineConfig:
    """Decide everything. Raises `Unsupported`, `ConfigError` or `OutOfMemory`; touches nothing."""
    _refuse_what_is_not_built(settings)
    dtype = defaults.dtype if settings.model.dtype == "auto" else settings.model.dtype
    if dtype not in facts.dtypes:
        raise Unsupported("model.dtype", f"{facts.name} does not compute in {dtype}", f"one of {sorted(facts.dtypes)}")
    kv_dtype = dtype if settings.memory.kv_dtype == "auto" else settings.memory.kv_dtype
    models, plan = _plan_model(loaded, PlanRequest(config, dtype, kv_dtype))
    cache = loaded.one("prefix_cache")
    cache_can: CacheCapabilities = cache.descriptor.capabilities(cache.options)
    refusals: list[Unsupported] = []
    for backend in loaded.all("attention"):  # alternatives in order of preference
        can = backend.descriptor.capabilities(facts)
        try:
            page_size = _page_size(settings, backend, can, cache, cache_can)
            groups = _groups(plan, backend, can, page_size, facts)
            break
        except Unsupported as refusal:
            refusals.append(refusal)
    else:
        raise refusals[0]
    scheduler = settings.scheduler
    limits = Limits(
        max_rows=scheduler.max_running,
        max_tokens=max(scheduler.chunk_tokens, scheduler.max_running),
        max_context=min(settings.model.max_context or plan.max_context, plan.max_context),
        page_size=page_size,
        depth=scheduler.depth if scheduler.depth is not None else int(facts.async_launch),
    )
    memory = plan_memory(
        facts.memory_bytes,
        settings.memory.fraction or defaults.memory_fraction,
        int((settings.memory.kv_gib or 0) * GIB),
        int(float(defaults.extra.get("kv_gib_cap", "0")) * GIB),
        limits,
        plan,
        [(choice.group, choice.layout) for choice in groups],
    )
    limits = replace(limits, max_context=min(limits.max_context, (memory.pages - 1) * page_size))
    runners = tuple(
        RunnerChoice(plugin, tuple(plugin.descriptor.keys(limits, can.capture, plugin.options)))
        for plugin in loaded.all("graph_runner")
    )
    passed_over = tuple(f"attention falls back to {backend.wired.offer.name}: {r.part} {r.cause}" for r in refusals)
    return EngineConfig(plan, config, models, groups, runners, limits, memory, bool(cache_can.shares), passed_over)


def _refuse_what_is_not_built(settings: Settings) -> None:
    given = settings.model_dump(include={"parallel": True, "server": {"workers"}, "attention": set(ATTENTION_ROLES)})
    asked = {f"{table}.{key}": value for table, content in given.items() for key, value in content.items()}
    for option, value in asked.items():
        same = None if option in ("attention.draft", "attention.shadow") else settings.attention.use
        if value not in (None, 1, same):
            raise Unsupported(option, "this version does not do it yet", "remove the line from the file")


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
                raise Unsupported(
                    plugin.wired.part, f"{plan.architecture} needs {what}, which no scheduler manages yet"
                )
            return plugin, plan
    cause = f"no installed model plugin knows the architecture {', '.join(named) or '(none named in config.json)'}"
    raise Unsupported("models", cause, f"known: {', '.join(sorted(known))}")


def _page_size(
    settings: Settings,
    backend: LoadedPlugin,
    can: AttentionCapabilities,
    cache: LoadedPlugin,
    cache_can: CacheCapabilities,
) -> int:
    wanted = settings.memory.page_size
    for size in can.page_sizes:
        if wanted in (None, size) and size in cache_can.page_sizes:
            return size
    sizes = ", ".join(map(str, can.page_sizes[:12])) + (" …" if len(can.page_sizes) > 12 else "")
    raise Unsupported(
        "memory.page_size",
        f"{wanted or 'no size'} suits both {backend.wired.part} ({sizes}) and "
        f"{cache.wired.part} ({cache_can.page_sizes.start} … {cache_can.page_sizes.stop - 1})",
        "choose a size from both lists",
    )


def _groups(
    plan: ModelPlan, backend: LoadedPlugin, can: AttentionCapabilities, page_size: int, facts: DeviceFacts
) -> tuple[GroupChoice, ...]:
    """Layers of equal spec form a group; every group gets the layout all its users share."""
    by_spec: dict[Any, list[int]] = {}
    for layer, spec in plan.attention.items():
        by_spec.setdefault(spec, []).append(layer)
    choices = []
    for number, (spec, layers) in enumerate(by_spec.items()):
        problem = check_spec(backend.wired.part, spec, can)
        if problem:
            raise Unsupported(
                backend.wired.part,
                f"{problem}, which {plan.architecture} needs in layer {layers[0]}",
                "name another attention backend",
            )
        layout = negotiate([(backend.wired.part, backend.descriptor.kv_layouts(spec, page_size, facts))])
        choices.append(GroupChoice(LayerGroup(f"{spec.component}.{number}", spec, tuple(layers)), layout, backend))
    return tuple(choices)
