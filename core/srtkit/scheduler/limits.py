"""Bounds of a scheduler's run. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass

from srtkit.scheduler.waiting import Policy
from srtkit.spec.kv import Component


@dataclass(frozen=True)
class SchedulerLimits:
    """`pools`: pages of each component without page 0, in the order of their numbers; `shares`: the cache can share
    prefixes; `inner_snapshots`: states can be copied inside a prompt chunk, else chunks end where one is wanted.
    """

    max_running: int
    chunk_tokens: int
    max_context: int
    page_size: int
    pools: Mapping[Component, int]
    policy: Policy = "fcfs"
    shares: bool = True
    inner_snapshots: bool = False

    @property
    def max_pages(self) -> int:
        """Pages of the longest context."""
        return -(-self.max_context // self.page_size)
