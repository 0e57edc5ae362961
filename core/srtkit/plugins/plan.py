"""The wiring plan: which plugins a run uses, exactly. Data that travels to child processes as JSON."""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from srtkit.plugins.registry import Offer


@dataclass(frozen=True)
class WiredPlugin:
    """One plugin in one role. `options` are complete, as JSON values.

    `role` is "use", for attention also "prefill", "decode", "mla", "draft", "shadow"; for a plugin that
    another one needs it is that need's role, and `owner` is the other's `id` ("" for all else).
    """

    offer: Offer
    contract: str
    options: dict[str, Any]
    role: str = "use"
    owner: str = ""

    @property
    def part(self) -> str:
        """How messages name it: "attention:aiter"."""
        return self.offer.part

    @property
    def id(self) -> str:
        """Unique in its plan: "attention:aiter", "attention:torch@shadow", "prefix_cache:hiradix/…"."""
        local = self.part if self.role == "use" else f"{self.part}@{self.role}"
        return f"{self.owner}/{local}" if self.owner else local


@dataclass(frozen=True)
class WiringPlan:
    """All plugins of a run in build order: what a plugin needs stands before it, the platform first.

    `degraded` holds a sentence for every fallback taken; empty means as configured.
    """

    plugins: tuple[WiredPlugin, ...]
    degraded: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the plan, hexadecimal: equal in every process of a run."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()
