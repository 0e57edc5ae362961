"""Start-up of one rank, in order: platform, model skeleton, weights, packing, pools, bind, warm-up, cache.

Everything decided stands in `EngineConfig`; this only makes the objects and joins them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
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
from srtkit.engine.weights import Progress, fill_weights
from srtkit.plugins.loaded import LoadedPlugins
from srtkit.scheduler.scheduler import Scheduler, SchedulerLimits
from srtkit.spec.attention import AttentionBuild, LayerHandle
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

WARM_UP_TOKENS = 64


@dataclass
class Built:
    """The parts of a running rank. `close` frees everything; nothing is used afterwards."""

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
    with ExitStack() as opened:
        platform_plugin = loaded.one("platform")
        platform: Platform = platform_plugin.descriptor.build(PlatformBuild(facts, platform_plugin.options))
        opened.callback(platform.close)
        offers = []
        for plugin in loaded.all("ops"):
            provider = plugin.descriptor.build(OpsBuild(platform, 0, config.limits, plugin.options))
            offers.append(Offer(plugin.wired.offer.name, plugin.descriptor, provider))
        binder = Binder(offers, facts)
        model = _load_model(config, loaded, binder, platform.device(0), path, progress)
        groups = [_bind(choice, config, platform) for choice in config.groups]
        program = TargetProgram(model, groups, config.limits, platform)
        opened.callback(program.close)
        graph_runners: dict[GraphRunner, Sequence[StepKey]] = {}
        for choice in config.runners:
            build = GraphRunnerBuild(config.limits, platform, 0, choice.plugin.options)
            graph_runner = choice.plugin.descriptor.build(build)
            opened.callback(graph_runner.close)
            graph_runners[graph_runner] = choice.keys
        runner = ModelRunner(platform, config.limits, program, graph_runners)
        runner.warm_up(min(WARM_UP_TOKENS, config.limits.max_tokens, config.limits.page_size), prompt=True)
        runner.warm_up(1, prompt=False)
        cache_plugin = loaded.one("prefix_cache")
        cache = cache_plugin.descriptor.build(PrefixCacheBuild(config.limits.page_size, (FULL,), cache_plugin.options))
        opened.callback(cache.close)
        limits = SchedulerLimits(
            max_running=config.limits.max_rows,
            chunk_tokens=settings.scheduler.chunk_tokens,
            max_context=config.limits.max_context,
            page_size=config.limits.page_size,
            pages=config.memory.pages - 1,
            policy=settings.scheduler.policy,
            shares=config.shares,
        )
        scheduler = Scheduler(limits, cache, config.fit)
        return Built(scheduler, runner, config, binder.choices, opened.pop_all().close)


def _load_model(
    config: EngineConfig, loaded: LoadedPlugins, binder: Binder, device: torch.device, path: Path, progress: Progress
) -> Model:
    build = ModelBuild(config.model, config.config, device, binder, Shard(), config.limits.max_tokens)
    model: Model = config.models.descriptor.build(build)
    plugin = choose_loader(loaded, path)
    with closing(plugin.descriptor.build(ModelLoaderBuild(path, plugin.options, config.config))) as loader:
        fill_weights(model, config.model, loader, Shard(), progress)
    model.pack()
    return model


def _bind(choice: GroupChoice, config: EngineConfig, platform: Platform) -> BoundGroup:
    """Allocate the group's pools, layer-major, and build its backends over them."""
    group, layout = choice.group, choice.layout
    backends = [
        plugin.descriptor.build(AttentionBuild(group, layout, config.limits, platform, 0, plugin.options))
        for plugin in choice.backends
    ]
    pools = {
        plane.name: platform.allocate("kv", (len(group.layers), config.memory.pages, *plane.shape), DTYPES[plane.dtype])
        for plane in layout.planes
    }
    handles = [
        LayerHandle(layer, {name: pool[i] for name, pool in pools.items()}) for i, layer in enumerate(group.layers)
    ]
    return BoundGroup(backends, handles)
