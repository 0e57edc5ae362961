"""A state machine that drives any prefix cache as a scheduler would, in orders nobody thinks of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from srtkit.spec.prefix_cache import PrefixCache
from srtkit_conformance.check import expect
from srtkit_conformance.kits.prefix_cache.caller import Caller, Running
from srtkit_conformance.kits.prefix_cache.prompts import prompt_pool

TOTAL_PAGES = 40
EXAMPLES, STEPS = 30, 30

any_prompt = st.integers(0, 15)
any_index = st.integers(0, 7)
any_share = st.integers(0, 8)


def run_machine(make_cache: Callable[[], PrefixCache], page_size: int, components: Sequence[str], salt: int) -> None:
    """Run the machine with fixed seeds; raises `Failed` with the steps that led to it in its notes."""

    class CacheMachine(SchedulerMachine):
        def __init__(self) -> None:
            super().__init__(Caller(make_cache(), page_size, components, TOTAL_PAGES), salt)

    how = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.generate,),  # steps are short already, and shrinking them costs minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(salt)(CacheMachine), settings=how)


class SchedulerMachine(RuleBasedStateMachine):
    """Rules are what a scheduler does; what must hold after every step is an invariant."""

    def __init__(self, caller: Caller, salt: int) -> None:
        super().__init__()
        self.caller = caller
        self.prompts = prompt_pool(caller.page_size, np.random.default_rng(salt))

    @rule(which=any_prompt, limit=st.sampled_from(["all but one", "all", "half", "none"]))
    def start(self, which: int, limit: str) -> None:
        """Admit a sequence."""
        n = len(self.prompts[which])
        self._start(which, {"all": n, "all but one": n - 1, "half": n // 2, "none": 0}[limit])

    @precondition(lambda self: self.caller.running)
    @rule(index=any_index, share=any_share, use_theirs=st.booleans())
    def commit_chunk(self, index: int, share: int, use_theirs: bool) -> None:
        """Give the cache what is committed so far."""
        self._commit(self.caller.running[index % len(self.caller.running)], share, use_theirs)

    @precondition(lambda self: self.caller.running)
    @rule(index=any_index, keep=st.booleans())
    def end(self, index: int, keep: bool) -> None:
        """A sequence ends, or is aborted."""
        self.caller.end(self.caller.running[index % len(self.caller.running)], keep)

    @rule(which=any_prompt, step=st.sampled_from([0, 1, -1]), share=any_share, use_theirs=st.booleans())
    def run_two_together(self, which: int, step: int, share: int, use_theirs: bool) -> None:
        """Two near prompts start before either is cached; one commits all, the other in two chunks."""
        first, second = self._start(which), self._start(which + step)
        if first is not None and second is not None:
            self._commit(first, share, use_theirs)
            self._commit(second, 8, use_theirs)
            self._commit(first, 8, use_theirs)

    @rule(n=st.integers(0, TOTAL_PAGES + 1))
    def evict(self, n: int) -> None:
        """Make room."""
        for name in self.caller.ledgers:
            before = self.caller.cache.evictable(name)
            freed = self.caller.evict(name, n)
            after = self.caller.cache.evictable(name)
            expect(after == before - freed, "evictable does not follow evict", observed=after, limit=before - freed)

    @rule(failed=st.booleans())
    def acknowledge(self, failed: bool) -> None:
        """Transfers end."""
        self.caller.acknowledge(failed)

    @rule(which=any_prompt)
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

    @rule()
    def reset(self) -> None:
        """Flush: nothing matches any more."""
        self.caller.reset()
        lengths = self.caller.cache.peek([prompt.key for prompt in self.prompts])
        expect(not any(lengths), "a prompt is still found after a reset", observed=lengths)

    @rule()
    def look_everywhere(self) -> None:
        """Nothing is lost, and peek tells the truth."""
        self.caller.check_peek([prompt.key for prompt in self.prompts])
        self.caller.check_reachable(self.prompts)

    @invariant()
    def counts_agree(self) -> None:
        """The cache counts what it was given, and does not promise what is pinned."""
        self.caller.check_counts()

    @invariant()
    def leases_stand(self) -> None:
        """What was lent is still there."""
        for one in self.caller.running:
            self.caller.check_lease(one.lease, one.prompt)

    def teardown(self) -> None:
        """When all have ended, every page can be had back."""
        self.look_everywhere()
        self.caller.check_all_free()
        self.caller.cache.close()

    def _start(self, which: int, usable: int | None = None) -> Running | None:
        return self.caller.start(self.prompts[which % len(self.prompts)], usable)

    def _commit(self, one: Running, share: int, use_theirs: bool) -> None:
        at = one.lease.length
        self.caller.commit(one, at + (len(one.prompt) - at) * share // 8, use_theirs)
