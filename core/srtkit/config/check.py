"""What is refused without knowing the model: options nobody has built yet, and parts that do not go together here.

Serving, explaining and `srt config check` ask it alike. Knows plugins by their declarations only.
"""

from srtkit.config.resolve import choose_attention, page_size
from srtkit.config.settings import Settings
from srtkit.plugins.loaded import LoadedPlugins
from srtkit.spec.capabilities import No
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.step_plan import StepKey

# Kinds that get what they need, and the kinds they get.
HANDED = {("attention", "attention"), ("prefix_cache", "prefix_cache"), ("prefix_cache", "kv_store")}


def check(settings: Settings, loaded: LoadedPlugins, facts: DeviceFacts, dtype: str, serving: bool) -> None:
    """Raise `Unsupported` naming setting, cause and remedy.

    `dtype` is the platform's, where the file names none; `serving`: each rank is to be a process of its own.
    """
    _refuse_what_is_not_built(settings)
    dtype = dtype if settings.model.dtype == "auto" else settings.model.dtype
    if dtype not in facts.dtypes:
        raise Unsupported("model.dtype", f"{facts.name} does not compute in {dtype}", f"one of {sorted(facts.dtypes)}")
    choose_attention(loaded, lambda backends: page_size(settings, loaded, backends, facts))
    for runner in loaded.all("graph_runner"):
        captures = runner.descriptor.capabilities(facts).levels - {"never"}
        if not captures and runner.descriptor.fit(StepKey(1, 1, q_len=1), ()) is None:
            cause = f"{runner.wired.part} captures nothing on {facts.name}, so no step would run by it"
            raise Unsupported("graph_runner.use", cause, "remove it from the list; eager runs every step")
    for needed in (plugin.wired for plugin in loaded.plugins if plugin.wired.owner):
        owner = needed.owner.rpartition("/")[2].partition(":")[0]
        if (owner, needed.offer.kind) not in HANDED:
            cause = f"needs {needed.part}, and this version hands no {needed.offer.kind} to a {owner}"
            raise Unsupported(needed.owner, cause, "use one that does not")
    cache = loaded.one("prefix_cache")
    can = cache.descriptor.capabilities(cache.options)
    if can.events:
        cause = "declares events, which this version never asks a cache for"
        raise Unsupported(cache.wired.part, cause, 'switch them off in its options, or put "events" around it')
    transport = loaded.one("transport")
    processes = transport.descriptor.capabilities(transport.options).processes
    if serving and isinstance(processes, No):
        cause = f"{transport.wired.part} cannot connect processes: {processes.reason}"
        raise Unsupported("transport.use", cause, 'name another, e.g. "zmq"')


def _refuse_what_is_not_built(settings: Settings) -> None:
    roles = {"mla", "draft"}
    given = settings.model_dump(include={"parallel": True, "server": {"workers"}, "attention": roles})
    asked = {f"{table}.{key}": value for table, content in given.items() for key, value in content.items()}
    for option, value in asked.items():
        if value not in (None, 1, settings.attention.use if option == "attention.mla" else None):
            raise Unsupported(option, "this version does not do it yet", "leave it out")
