"""Bounds of a scheduler's run. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass

from srtkit.scheduler.waiting import Policy
from srtkit.spec.facts import Limits
from srtkit.spec.kv import Component


@dataclass(frozen=True, kw_only=True)
class SchedulerLimits(Limits):
    """`chunk_tokens`: most tokens of prompts in a step; `pools`: pages of each component without page 0, in the order
    of their numbers; `shares`: the cache can share prefixes; `inner_snapshots`: states can be copied inside a prompt
    chunk, else chunks end where one is wanted.
    """

    chunk_tokens: int
    pools: Mapping[Component, int]
    policy: Policy = "fcfs"
    shares: bool = True
    inner_snapshots: bool = False
