"""A state machine that drives any prefix cache as a scheduler would, in orders nobody thinks of.

It has one rule, which draws its step from all kinds of step: Hypothesis switches whole rules off for whole
runs, and with as few runs as certification can afford most of them would then have nothing to find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import PrefixCache
from srtkit_conformance.check import expect
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.prompts import prompt_pool
from srtkit_conformance.kits.prefix_cache.running import Running

TOTAL_PAGES = 40
STEPS = 30
RESETS = 3
"""At most so many in a run, else there is never much to find."""

_prompt = st.integers(0, 15)
_index = st.integers(0, 7)
_share = st.integers(0, 8)
_step = st.one_of(
    st.tuples(st.just("start"), _prompt, st.sampled_from(["all but one", "all", "half", "none"])),
    st.tuples(st.just("serve"), _prompt, _prompt),
    st.tuples(st.just("commit"), _index, _share, st.booleans()),
    st.tuples(st.just("end"), _index, st.booleans()),
    st.tuples(st.just("two together"), _prompt, st.sampled_from([0, 1, -1]), _share, st.booleans()),
    st.tuples(st.just("evict"), st.integers(0, TOTAL_PAGES + 1)),
    st.tuples(st.just("look"), st.integers(0, 4)),
    st.tuples(st.just("acknowledge"), st.booleans()),
    st.tuples(st.just("pin and press"), _prompt),
    st.tuples(st.just("reset")),
)


def run_machine(
    make_cache: Callable[[], PrefixCache],
    page_size: int,
    components: Sequence[Component],
    *,
    salt: int,
    runs: int,
    shrink: bool,
) -> None:
    """Run the machine `runs` times from one seed; raises `Failed` with the steps that led to it in its notes.

    `shrink`: look for the fewest steps, which takes some seconds.
    """

    class CacheMachine(SchedulerMachine):
        def __init__(self) -> None:
            super().__init__(Caller(make_cache(), page_size, components, TOTAL_PAGES), salt)

    how = settings(
        max_examples=runs,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(salt)(CacheMachine), settings=how)


class SchedulerMachine(RuleBasedStateMachine):
    """A step is something that a scheduler does."""

    def __init__(self, caller: Caller, salt: int) -> None:
        super().__init__()
        self.caller = caller
        self.resets = 0
        self.prompts = prompt_pool(caller.page_size, np.random.default_rng(salt))

    @rule(step=_step)
    def do(self, step: tuple[Any, ...]) -> None:
        """One step, and a look at all that must hold after it."""
        running = self.caller.running
        match step:
            case "start", which, limit:
                n = len(self.prompts[which])
                self.start(which, {"all": n, "all but one": n - 1, "half": n // 2, "none": 0}[limit])
            case "serve", *pair:
                for which in pair:
                    if (one := self.start(which)) is not None:
                        self.caller.end(one)
            case "commit", index, share, use_theirs if running:
                self.commit(running[index % len(running)], share, use_theirs)
            case "end", index, keep if running:
                self.caller.end(running[index % len(running)], keep)
            case "two together", which, offset, share, use_theirs:
                self.run_two_together(which, which + offset, share, use_theirs)
            case "evict", n:
                self.evict(n)
            case "look", n:
                self.look(n)
            case "acknowledge", failed:
                self.caller.acknowledge(failed)
            case "pin and press", which:
                self.pin_and_press(which)
            case ("reset",) if self.resets < RESETS:
                self.reset()
        self.check()

    def start(self, which: int, usable: int | None = None) -> Running | None:
        """Admit a sequence, if its pages can be had."""
        return self.caller.start(self.prompts[which % len(self.prompts)], usable)

    def commit(self, one: Running, share: int, use_theirs: bool) -> None:
        """Give the cache so many eighths of what is left of a sequence; of whole pages in every second case.

        Then with a snapshot, if there is a component for it. In every third case the pages before a window are let go
        before, not after.
        """
        at = one.lease.length
        upto = at + (len(one.prompt) - at) * share // 8
        if self.caller.slots and share % 2 == 0:
            upto -= upto % self.caller.page_size
        if share % 3 == 0:
            self.caller.let_go(one, upto)
        self.caller.commit(one, upto, use_theirs)

    def run_two_together(self, which: int, other: int, share: int, use_theirs: bool) -> None:
        """Two near prompts start before either is cached; one commits all, the other in two chunks."""
        first, second = self.start(which), self.start(other)
        if first is not None and second is not None:
            self.commit(first, share, use_theirs)
            self.commit(second, 8, use_theirs)
            self.commit(first, 8, use_theirs)

    def evict(self, n: int) -> None:
        """Make room."""
        for name in self.caller.ledgers:
            before = self.caller.cache.evictable(name)
            freed = self.caller.evict(name, n)
            after = self.caller.cache.evictable(name)
            expect(after == before - freed, "evictable does not follow evict", observed=after, limit=before - freed)

    def look(self, n: int) -> None:
        """Nothing is lost and peek tells the truth, also after a little pressure."""
        for _ in range(2):
            self.caller.check_peek([prompt.key for prompt in self.prompts])
            self.caller.check_reachable(self.prompts)
            self.evict(n)

    def pin_and_press(self, which: int) -> None:
        """Two leases on one path; pressure; release one; pressure; the other must stand all the time."""
        prompt = self.prompts[which]
        first, second = self.caller.match(prompt), self.caller.match(prompt)
        self.caller.press()
        self.caller.check_lease(first, prompt)
        again = self.caller.match(prompt)
        expect(again.length == first.length, "a pinned prefix can no longer be matched", observed=again.length)
        self.caller.release(again)
        self.caller.release(first)
        self.caller.press()
        self.caller.check_lease(second, prompt)
        self.caller.release(second)

    def reset(self) -> None:
        """Flush: nothing matches any more."""
        self.resets += 1
        self.caller.reset()
        lengths = self.caller.cache.peek([prompt.key for prompt in self.prompts])
        expect(not any(lengths), "a prompt is still found after a reset", observed=lengths)

    def check(self) -> None:
        """What holds after every step: the cache's figures, and that what was lent is still there."""
        self.caller.check_counts()
        for one in self.caller.running:
            self.caller.check_lease(one.lease, one.prompt, matched=one.matched)

    def teardown(self) -> None:
        """When all have ended, every page can be had back."""
        self.caller.check_reachable(self.prompts)
        self.caller.check_all_free()
        self.caller.cache.close()
