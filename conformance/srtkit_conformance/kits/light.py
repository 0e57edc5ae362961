"""A plugin as text, written where a check wants it installed: a light module and a `.dist-info` folder.

The checks of loading are proved with it, since a fault in a light module cannot be made by wrapping a descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from srtkit.spec.capabilities import NoOptions

SOURCE = '''"""A prefix cache that keeps nothing: the descriptor."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import Need, No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor


class Options(BaseModel):
    """Options of the toy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pages: int = Field(1, ge=1, description="how many")
    names: tuple[str, ...] = Field((), description="for whom")


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Nothing is shared."""
    no = No("it keeps nothing")
    return CacheCapabilities(page_sizes=range(1, 17), reaches=frozenset({"all"}), shares=no, tiers=no, events=no)


def needs(options: BaseModel) -> Sequence[Need]:
    """Nothing."""
    return ()


def build(args: PrefixCacheBuild) -> PrefixCache:
    """Not part of loading."""
    raise NotImplementedError


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the toy."""
    return PrefixCacheDescriptor(
        contract="1.0", options=Options, capabilities=capabilities, needs=needs, build=build
    )
'''

METADATA = """Metadata-Version: 2.1
Name: srtkit-toy
Version: 1.0
Requires-Python: >=3.11
Requires-Dist: srtkit-core>=0.1
"""


@dataclass(frozen=True)
class LightPlugin:
    """A distribution of the light module `srtkit_toy`. `others` are further modules: name and source."""

    source: str = SOURCE
    metadata: str = METADATA
    group: str = "srtkit.prefix_cache.v1"
    entry: str = "toy"
    value: str = "srtkit_toy"
    others: tuple[tuple[str, str], ...] = ()

    def options(self) -> NoOptions:
        """None: the text has its own."""
        return NoOptions()

    def install(self, folder: Path) -> None:
        """Write it into `folder`, which then plays site-packages."""
        info = folder / "srtkit_toy-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(self.metadata)
        (info / "entry_points.txt").write_text(f"[{self.group}]\n{self.entry} = {self.value}\n")
        (info / "RECORD").write_text("")
        for name, source in (("srtkit_toy", self.source), *self.others):
            (folder / f"{name}.py").write_text(source)

    def edited(self, old: str, new: str) -> LightPlugin:
        """With one place of the source changed."""
        assert self.source.count(old) == 1, f"{old!r} is not in the source once"
        return replace(self, source=self.source.replace(old, new))

    def with_statement(self, statement: str) -> LightPlugin:
        """With something more that happens when the module is imported."""
        return replace(self, source=f"{self.source}\n{statement}\n")


REFERENCE = LightPlugin()
