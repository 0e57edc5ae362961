"""Legal platforms: one that cannot give memory back, one that waits more than it must, one with other defaults."""

from __future__ import annotations

from dataclasses import replace

from srtkit.spec.capabilities import Answer, No
from srtkit.spec.platform import ArenaTag, PlatformDescriptor
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.platform.wrap import WrappedEvent, WrappedPlatform, around, with_events


class KeepsMemory(WrappedPlatform):
    def release(self, tag: ArenaTag) -> Answer:
        return No("memory of a mapping cannot be given back here")


class WaitsAtOnce(WrappedEvent):
    """Recording waits for everything before it, as on a device without asynchronous launch."""

    def record(self) -> None:
        self.inner.record()
        self.platform.current_stream().synchronize()


keeps_memory = variant("platform.keeps_memory", of="cpu", sentence="Cannot release an arena, and says so.")(
    around(KeepsMemory)
)
waits_at_once = variant("platform.waits_at_once", of="fakedev", sentence="Every event waits when it is recorded.")(
    with_events(WaitsAtOnce)
)


@variant("platform.few_defaults", of="cpu", sentence="Chooses an attention backend only.")
def few_defaults(descriptor: PlatformDescriptor) -> PlatformDescriptor:
    return replace(
        descriptor,
        defaults=lambda facts: replace(descriptor.defaults(facts), plugins={"attention": ("torch",)}, environment={}),
    )
