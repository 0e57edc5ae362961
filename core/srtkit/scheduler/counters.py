"""Running totals of a scheduler, for metrics and the log line. Written in plan and commit, read outside."""

from __future__ import annotations

from dataclasses import dataclass

from srtkit.spec.step_plan import StepPlan


@dataclass
class Counters:
    """Totals since start. Prompt tokens count what clients sent, cached those not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted: int = 0
    retracted: int = 0
    steps: int = 0

    def admitted(self, n: int, cached: int) -> None:
        """A sequence of n tokens was admitted, `cached` of them from the cache."""
        self.prompt_tokens += n
        self.cached_tokens += cached

    def committed(self, plan: StepPlan, n_tokens: int) -> None:
        """A step was committed and brought n tokens."""
        self.steps += 1
        self.output_tokens += n_tokens
