"""Running totals of a scheduler, for metrics and the log line. Written in plan and commit, read outside."""

from dataclasses import dataclass


@dataclass
class Counters:
    """Totals since start. Prompt tokens count what clients sent, cached those not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted: int = 0
    retracted: int = 0
    steps: int = 0
