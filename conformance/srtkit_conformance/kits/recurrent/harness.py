"""One backend under test: its capabilities, cases that it declares, and building it for one. Knows no check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from srtkit.spec.facts import Limits
from srtkit.spec.recurrent import RecurrentBackend, RecurrentBuild, RecurrentCapabilities, RecurrentDescriptor
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.recurrent.case import CHANNELS, Case
from srtkit_conformance.target import Target

PREFERRED_DTYPES = ("float32", "bfloat16", "float16")
"""The most exact first: it shows most faults."""


class Harness:
    """A target and its platform for the time of one check."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.descriptor: RecurrentDescriptor = target.descriptor
        self.can: RecurrentCapabilities = self.descriptor.capabilities(target.facts)
        self.platform = target.platform()
        self.device = self.platform.device(target.device_index)

    @property
    def dtypes(self) -> list[str]:
        """Declared dtypes, the most exact first."""
        known = [name for name in PREFERRED_DTYPES if name in self.can.dtypes]
        return known or sorted(self.can.dtypes)

    @property
    def kinds(self) -> list[str]:
        """Declared kinds. Raises `Failed` for none: there is nothing else that a backend could be for."""
        kinds = [kind for kind in CHANNELS if kind in self.can.features]
        if not kinds or not self.dtypes:
            raise Failed(f"declares none of the kinds {', '.join(CHANNELS)}, or no dtype")
        return kinds

    def case(self, kind: str = "", **changes: Any) -> Case:
        """A case of a declared kind, changed as told."""
        return replace(Case(kind or self.kinds[0], self.dtypes[0]), **changes)

    def cases(self, **changes: Any) -> list[Case]:
        """One case for each declared kind."""
        return [self.case(kind, **changes) for kind in self.kinds]

    def build(self, case: Case, limits: Limits, layers: int = 1) -> RecurrentBackend:
        """A backend for layers of the case. Raises `Unsupported` where the plugin refuses."""
        target = self.target
        return self.descriptor.build(
            RecurrentBuild(
                case.spec,
                tuple(range(layers)),
                limits,
                self.platform,
                target.device_index,
                target.options,
                needs=target.extra.get("needs"),
            )
        )
