"""The plugin under test: its descriptor and options, the device it runs on, and a seed. Knows no kind."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import Platform, PlatformBuild, PlatformDescriptor

ABSENT = "absent"
"""Name and architecture of a device that is not here: level 0 needs none."""


@dataclass(frozen=True)
class Target:
    """`descriptor` is the kind's own type. `folder` is private to one check, for files and sockets.

    `group` and `value` are those of the entry point, "" for a plugin that was not loaded from one. `mutant`: it is
    one of the suite's own, of which only the verdict matters; nobody reads the smallest example that fails. `origin` is
    then the plugin that it was made of. `servers`: at most so many are started for a check; None for all it takes.
    """

    kind: str
    name: str
    descriptor: Any
    options: BaseModel
    facts: DeviceFacts
    platform_descriptor: PlatformDescriptor
    folder: Path
    seed: int = 0
    distribution: str = ""
    version: str = ""
    group: str = ""
    value: str = ""
    device_index: int = 0
    mutant: bool = False
    origin: str = ""
    servers: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def part(self) -> str:
        """How messages name it: "attention:aiter"."""
        return f"{self.kind}:{self.name}"

    def platform(self) -> Platform:
        """A new platform object for the device under test."""
        descriptor = self.platform_descriptor
        return descriptor.build(PlatformBuild(self.facts, descriptor.options(), device_index=self.device_index))

    def rng(self, salt: str = "") -> np.random.Generator:
        """Random numbers that depend on the run's seed and `salt` only."""
        return np.random.default_rng([self.seed, zlib.crc32(salt.encode())])

    def with_descriptor(self, name: str, descriptor: Any) -> Target:
        """The same circumstances for another plugin of the kind: how mutants are run."""
        options = descriptor.options()
        made = replace(self, name=name, descriptor=descriptor, options=options, mutant=True, origin=self.name)
        return replace(made, distribution="", group="", value="")
