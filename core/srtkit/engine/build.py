"""Start-up of one rank, in order: platform, model skeleton, weights, packing, pools, bind, warm-up, cache.

Everything decided stands in `EngineConfig`; this only makes the objects and joins them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from srtkit.config.prepare import choose_loader
from srtkit.config.resolve import EngineConfig, GroupChoice
from srtkit.config.settings import Settings
from srtkit.engine.loop import EngineLoop
from srtkit.engine.ops import Binder, Offer
from srtkit.engine.runner import BoundGroup, ModelRunner, TargetProgram
from srtkit.engine.weights import fill_weights
from srtkit.plugins.loaded import LoadedPlugins
from srtkit.scheduler.scheduler import Scheduler, SchedulerLimits
from srtkit.spec.attention import AttentionBuild, LayerHandle
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Shard
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild
from srtkit.spec.kv import FULL
from srtkit.spec.layers import DTYPES
from srtkit.spec.model_loader import ModelLoaderBuild
from srtkit.spec.models import Model, ModelBuild
from srtkit.spec.ops import OpsBuild
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit.spec.prefix_cache import PrefixCacheBuild
from srtkit.spec.step_plan import StepKey
from srtkit.spec.transport import Receiver, Sender

Progress = Callable[[int, int], None]
"""Called as (done, total), in bytes, while weights are loaded."""

WARM_UP_TOKENS = 64


@dataclass
class Built:
    """The parts of a running rank."""

    scheduler: Scheduler
    runner: ModelRunner
    config: EngineConfig
    ops: Mapping[str, str]
    close: Callable[[], None]

    def info(self) -> dict[str, Any]:
        """Figures for `/server_info`. `kv_resident_bytes` counts pages that were ever used."""
        memory, limits = self.config.memory, self.config.limits
        return {
            "weights_bytes": memory.weights,
            "kv_bytes": memory.kv,
            "kv_resident_bytes": (self.scheduler.book.pool.touched + 1) * memory.page_bytes,
            "kv_tokens": (memory.pages - 1) * limits.page_size,
            "pages": memory.pages - 1,
            "page_size": limits.page_size,
            "workspace_bytes_estimate": memory.workspace,
            "ops": dict(self.ops),
            "peak_bytes": self.runner.platform.memory(0).peak,
        }

    def loop(self, inbox: Receiver, outbox: Sender, on_idle: Callable[[], object] = lambda: None) -> EngineLoop:
        """The loop over these parts."""
        return EngineLoop(self.scheduler, self.runner, inbox, outbox, self.config.limits.depth, self.info, on_idle)


def build_engine(
    settings: Settings, loaded: LoadedPlugins, facts: DeviceFacts, config: EngineConfig, path: Path, progress: Progress
) -> Built:
    """Make everything a rank needs. Call it in the thread that will compute."""
    platform_plugin = loaded.one("platform")
    platform: Platform = platform_plugin.descriptor.build(PlatformBuild(facts, platform_plugin.options))
    device = platform.device(0)
    offers = [
        Offer(
            one.wired.offer.name,
            one.descriptor,
            one.descriptor.build(OpsBuild(platform, 0, config.limits, one.options)),
        )
        for one in loaded.all("ops")
    ]
    binder = Binder(offers, facts)
    model = _load_model(config, loaded, binder, device, path, progress)
    groups = [_bind(choice, config, platform) for choice in config.groups]
    n_layers = max(config.model.attention) + 1
    program = TargetProgram(model, groups, n_layers)
    runners, eager = _graph_runners(config, platform, program)
    runner = ModelRunner(platform, device, config.limits, program, runners, eager)
    tokens = min(WARM_UP_TOKENS, config.limits.max_tokens, config.limits.page_size)
    for key in (StepKey(1, tokens, 0), StepKey(1, 1, 1)):
        runner.warm_up(key)
    cache_plugin = loaded.one("prefix_cache")
    cache = cache_plugin.descriptor.build(PrefixCacheBuild(config.limits.page_size, (FULL,), cache_plugin.options))
    limits = SchedulerLimits(
        max_running=config.limits.max_rows,
        chunk_tokens=settings.scheduler.chunk_tokens,
        max_context=config.limits.max_context,
        page_size=config.limits.page_size,
        pages=config.memory.pages - 1,
        policy=settings.scheduler.policy,
        shares=config.shares,
    )

    def close() -> None:
        cache.close()
        for graph_runner in {*runners.values(), eager}:
            graph_runner.close()
        for one in groups:
            one.plan.close()
            one.backend.close()
        platform.close()

    return Built(Scheduler(limits, cache, config.fit), runner, config, binder.choices, close)


def _load_model(
    config: EngineConfig, loaded: LoadedPlugins, binder: Binder, device: torch.device, path: Path, progress: Progress
) -> Model:
    build = ModelBuild(config.model, config.config, device, binder, Shard(), config.limits.max_tokens)
    model: Model = config.models.descriptor.build(build)
    plugin = choose_loader(loaded, path)
    loader = plugin.descriptor.build(ModelLoaderBuild(path, plugin.options, config.config))
    try:
        fill_weights(model, config.model, loader, Shard(), progress)
    finally:
        loader.close()
    model.pack()
    return model


def _bind(choice: GroupChoice, config: EngineConfig, platform: Platform) -> BoundGroup:
    """Allocate the group's pools, layer-major, and build its backend over them."""
    group, layout = choice.group, choice.layout
    build = AttentionBuild(group, layout, config.limits, platform, 0, choice.backend.options)
    backend = choice.backend.descriptor.build(build)
    pools = {
        plane.name: platform.allocate("kv", (len(group.layers), config.memory.pages, *plane.shape), DTYPES[plane.dtype])
        for plane in layout.planes
    }
    handles = [
        LayerHandle(layer, {name: pool[i] for name, pool in pools.items()}) for i, layer in enumerate(group.layers)
    ]
    return BoundGroup(group, backend, backend.new_plan(config.limits), handles)


def _graph_runners(
    config: EngineConfig, platform: Platform, program: TargetProgram
) -> tuple[dict[StepKey, GraphRunner], GraphRunner]:
    runners: dict[StepKey, GraphRunner] = {}
    eager: GraphRunner | None = None
    for choice in config.runners:
        plugin = choice.plugin
        runner: GraphRunner = plugin.descriptor.build(GraphRunnerBuild(config.limits, platform, 0, plugin.options))
        runner.prepare(program, choice.keys)
        for key in choice.keys:
            runners.setdefault(key, runner)
        if not choice.keys:
            eager = runner
    if eager is None:
        raise Unsupported("graph_runner", "no runner takes steps of any shape", 'end the list with "eager"')
    return runners, eager
