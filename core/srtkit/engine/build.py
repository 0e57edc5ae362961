"""Start-up of one rank, in order: platform, model skeleton, weights, packing, pools, bind, warm-up, cache.

Everything decided stands in `EngineConfig`; this only makes the objects and joins them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from srtkit.config.kv_scales import Scales, kv_scales, kv_scales_file
from srtkit.config.prepare import choose_loader
from srtkit.config.resolve import EngineConfig, GroupChoice, RecurrentChoice
from srtkit.config.settings import Settings
from srtkit.engine.loop import EngineLoop
from srtkit.engine.ops import Binder, Offer
from srtkit.engine.ops import sample as reference_sample
from srtkit.engine.runner import BoundGroup, ModelRunner, RecurrentGroup, TargetProgram
from srtkit.engine.weights import Progress, fill_weights, stored_scales
from srtkit.plugins.loaded import LoadedPlugins
from srtkit.scheduler.limits import SchedulerLimits
from srtkit.scheduler.scheduler import Scheduler
from srtkit.spec.attention import AttentionBuild, LayerHandle
from srtkit.spec.capabilities import NoOptions
from srtkit.spec.facts import DeviceFacts, Shard
from srtkit.spec.graph_runner import GraphRunner, GraphRunnerBuild
from srtkit.spec.kv import Plane
from srtkit.spec.kv_store import KVStoreBuild
from srtkit.spec.layers import DTYPES
from srtkit.spec.model_loader import ModelLoaderBuild
from srtkit.spec.models import Model, ModelBuild
from srtkit.spec.ops import OpsBuild
from srtkit.spec.platform import Platform, PlatformBuild
from srtkit.spec.prefix_cache import PrefixCacheBuild
from srtkit.spec.recurrent import RecurrentBuild, RecurrentLayer
from srtkit.spec.step_plan import StepKey
from srtkit.spec.tiers import MoverBuild
from srtkit.spec.transport import Receiver, Sender

WARM_UP_TOKENS = 64
SAMPLE = 64  # numbers of a parameter that its model is known by, or a few more


@dataclass
class Built:
    """The parts of a running rank. `close` frees everything; nothing is used afterwards.

    `kv_scales`: what a file of them needs, its "file" and the digest of the "weights".
    """

    scheduler: Scheduler
    runner: ModelRunner
    config: EngineConfig
    ops: Mapping[str, str]
    kv_scales: Mapping[str, str]
    close: Callable[[], None]

    def info(self) -> dict[str, Any]:
        """Figures for `/server_info`. `kv_resident_bytes` counts pages that were ever used."""
        memory, main = self.config.memory, self.scheduler.book.main.pool
        parts, page_size = self.scheduler.book.parts, self.config.limits.page_size
        resident = [(part.pool.touched + 1) * pool.page_bytes for part, pool in zip(parts, memory.pools, strict=True)]
        return {
            "weights_bytes": memory.weights,
            "kv_bytes": memory.kv,
            "kv_resident_bytes": sum(resident),
            "kv_tokens": main.total * page_size,
            "pages": main.total,
            "page_size": page_size,
            "components": {part.name: part.pool.total for part in parts},
            "workspace_bytes_estimate": memory.workspace,
            "captured": self.runner.captured,
            "ops": dict(self.ops),
            "kv_scales": dict(self.kv_scales),
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
        model, weights, stored = _load_model(config, loaded, binder, platform.device(0), path, progress)
        scales = kv_scales(path, weights.hex(), [choice.group for choice in config.groups], stored)
        attention = [_bind(choice, config, loaded, platform, scales) for choice in config.groups]
        recurrent = [_bind_recurrent(choice, config, platform, model) for choice in config.recurrent]
        components, page_size = config.model.components, config.limits.page_size
        whole = [key for choice in config.runners if not choice.cuts for key in choice.keys]
        argmax = binder.op("argmax", config.model.dtype, vocab=config.model.vocab_size)
        program = TargetProgram(model, (attention, recurrent), components, config.limits, platform, argmax, whole)
        opened.callback(program.close)
        graph_runners: dict[GraphRunner, Sequence[StepKey]] = {}
        for one in config.runners:
            graph_runner = one.plugin.descriptor.build(GraphRunnerBuild(config.limits, platform, 0, one.plugin.options))
            opened.callback(graph_runner.close)
            graph_runners[graph_runner] = one.keys
        draw = binder.op("sample", config.model.dtype, vocab=config.model.vocab_size)
        # Without a provider the engine's own way sorts no row that need not be.
        own = None if draw is reference_sample else draw
        runner = ModelRunner(platform, config.limits, program, graph_runners, own)
        runner.warm_up(min(WARM_UP_TOKENS, config.limits.max_tokens, config.limits.page_size), prompt=True)
        runner.warm_up(1, prompt=False)
        cache_plugin = loaded.one("prefix_cache")
        identity, page_bytes = _identity(config, weights, scales), sum(pool.page_bytes for pool in config.memory.pools)
        cache_build = PrefixCacheBuild(page_size, components, cache_plugin.options, identity, page_bytes=page_bytes)
        cache = loaded.build(cache_plugin, {"prefix_cache": cache_build})
        opened.callback(cache.close)
        if cache_plugin.descriptor.mover is not None:
            layers = {c.name: [h for g in attention if g.component == c.name for h in g.handles] for c in components}
            stores = loaded.build_needs(cache_plugin, {"kv_store": KVStoreBuild(NoOptions())})
            mover_build = MoverBuild(platform, layers, identity, cache_plugin.options, stores)
            program.mover = cache_plugin.descriptor.mover(mover_build)
            opened.callback(program.mover.close)
        limits = SchedulerLimits(
            **vars(config.limits),
            chunk_tokens=settings.scheduler.chunk_tokens,
            pools={pool.component: pool.pages - 1 for pool in config.memory.pools},
            policy=settings.scheduler.policy,
            shares=config.shares,
            inner_snapshots=all(choice.can.inner_snapshots for choice in config.recurrent),
        )
        scheduler = Scheduler(limits, cache, config.fit)
        about = {"file": str(kv_scales_file(path)), "weights": weights.hex()}
        return Built(scheduler, runner, config, binder.choices, about, opened.pop_all().close)


def _load_model(
    config: EngineConfig, loaded: LoadedPlugins, binder: Binder, device: torch.device, path: Path, progress: Progress
) -> tuple[Model, bytes, dict[str, float]]:
    """The model with its weights, a digest of a sample of each, and scales of KV that stand among them."""
    build = ModelBuild(config.model, config.config, device, binder, Shard(), config.limits.max_tokens)
    model: Model = config.models.descriptor.build(build)
    plugin = choose_loader(loaded, path)
    with closing(plugin.descriptor.build(ModelLoaderBuild(path, plugin.options, config.config))) as loader:
        fill_weights(model, config.model, loader, Shard(), progress)
        scales = stored_scales(loader)
    digest = blake2b(digest_size=32)
    for name, slot in sorted(model.slots().items()):  # as bfloat16, so that float32 and it are one model
        sample = slot.flatten()[:: max(1, slot.numel() // SAMPLE)].bfloat16().float().cpu()
        digest.update(name.encode() + sample.numpy().tobytes())
    model.pack()
    return model, digest.digest(), scales


def _identity(config: EngineConfig, weights: bytes, scales: Scales) -> bytes:
    """What a page holds beside its tokens and what is before them: equal where pages may be exchanged."""
    parts = [config.model.dtype, *((one.group, one.layout) for one in config.groups), sorted(scales.items())]
    return repr((weights, sorted(config.config.items()), parts)).encode()


def _bind(
    choice: GroupChoice, config: EngineConfig, loaded: LoadedPlugins, platform: Platform, scales: Scales
) -> BoundGroup:
    """Allocate the group's pools, layer-major, and build its backends over them."""
    group, layout = choice.group, choice.layout
    build = {"attention": AttentionBuild(group, layout, config.limits, platform, 0, NoOptions())}
    backends = [loaded.build(plugin, build) for plugin in choice.backends]
    for shadow in loaded.all("attention", "shadow"):
        backends = [loaded.build(shadow, build, live=backend) for backend in backends]
    planes = _allocate(group.spec.component, layout.planes, group.layers, config, platform)
    own: dict[int, dict[str, Tensor]] = {
        i: {k: torch.tensor(x, device=platform.device(0)) for k, x in scales[i].items()} for i in planes if i in scales
    }
    handles = [LayerHandle(layer, views, scales=own.get(layer)) for layer, views in planes.items()]
    return BoundGroup(backends, handles, group.spec.component)


def _bind_recurrent(choice: RecurrentChoice, config: EngineConfig, platform: Platform, model: Model) -> RecurrentGroup:
    """Allocate the layers' states and build their backend."""
    plugin, layers = choice.plugin, choice.layers
    build = RecurrentBuild(choice.spec, layers, config.limits, platform, 0, plugin.options)
    (state,) = (one.name for one in config.model.components if one.kind == "slot")
    planes, weights = _allocate(state, choice.planes, layers, config, platform), model.recurrent_weights()
    handles = [RecurrentLayer(layer, own, weights[layer]) for layer, own in planes.items()]
    return RecurrentGroup(plugin.descriptor.build(build), handles, choice.spec.inputs)


def _allocate(
    component: str, planes: Sequence[Plane], layers: Sequence[int], config: EngineConfig, platform: Platform
) -> dict[int, dict[str, Tensor]]:
    """The planes of a component, layer-major: each layer's views by name."""
    (pages,) = (pool.pages for pool in config.memory.pools if pool.component.name == component)
    whole = {one.name: platform.allocate("kv", (len(layers), pages, *one.shape), DTYPES[one.dtype]) for one in planes}
    return {layer: {name: plane[i] for name, plane in whole.items()} for i, layer in enumerate(layers)}
