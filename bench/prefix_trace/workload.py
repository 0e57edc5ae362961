"""What the made-up traffic is like: every figure with where it comes from.

"assumed" marks what no source gives. Sources:
[W] WildChat, arXiv 2405.01470: a million chats with their tokens, table of basic statistics and text.
[M] Mooncake, FAST '25: `conversation_trace.jsonl` of its release, one hour of 12,031 requests, as measured by us (a
    request continues the last one with which it shares more than the first block of 512); its paper's table of traces.
[K] KVCache Cache in the Wild, arXiv 2506.02634: a cloud provider's chat and API traffic.
[T] TraceLab, tracelab.cs.washington.edu: 357,161 steps of coding agents.
[S] ServeGen, arXiv 2505.09999: how requests of a cloud provider arrive.

To compare what comes out: of all reuses the tenth of blocks used most has 75 % in [M] and 77 % in [K]. An unlimited
cache reuses 37 % of the tokens in [M], whose prompts are far longer than those of [W] and seldom continued.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

VOCABULARY = 150_000
MAX_CONTEXT = 32_768  # assumed: a conversation ends before its context would be longer
RATE = 3.4  # requests a second [M]
SHARES = {"chat": 0.5, "batch": 0.3, "agent": 0.2}  # of the requests, assumed
PRIORITY = {"chat": 1, "batch": 0, "agent": 1}  # assumed: somebody waits for chats and agents
ARRIVAL_SHAPE = 0.5  # of the gamma distribution between sessions: burstier than Poisson [S]; the value is assumed

# The server. What a turn adds is prefilled, whatever was cached, so that all caches see the same sequence of events.
MAX_RUNNING = 64  # assumed
PREFILL_RATE = 8000  # tokens a second, assumed
DECODE_RATE = 50  # tokens a second and request, assumed


@dataclass(frozen=True)
class Lognormal:
    """Lengths and times whose logarithm is normal; `sigma` is that of the logarithm."""

    median: float
    sigma: float

    @classmethod
    def of(cls, mean: float, deviation: float) -> Lognormal:
        """The one with this mean and standard deviation."""
        sigma = math.sqrt(math.log1p((deviation / mean) ** 2))
        return cls(mean / math.exp(sigma**2 / 2), sigma)

    def draw(self, random: np.random.Generator) -> float:
        """One value."""
        return float(random.lognormal(math.log(self.median), self.sigma))

    def tokens(self, random: np.random.Generator) -> int:
        """One value as a number of tokens, at least 1."""
        return max(1, round(self.draw(random)))


def zipf(n: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How popular each of n things is: the k-th as 1/k, the exponent assumed."""
    weights = 1.0 / np.arange(1, n + 1)
    popularity: np.ndarray[tuple[int], np.dtype[np.float64]] = weights / weights.sum()
    return popularity


HUMAN_GAP = Lognormal(
    123, 1.07
)  # seconds from a request to its conversation's next: quartiles 66, 123, 264, p90 483 [M]

# Chats: one of many applications, each with its system prompt, and then turns.
CHAT_PROMPTS = 40  # assumed
CHAT_PROMPT_TOKENS = Lognormal(400, 0.8)  # assumed; in [M] every request shares a first block of 512
CHAT_USER_TOKENS = Lognormal.of(295.58, 1609.18)  # [W]
CHAT_ANSWER_TOKENS = Lognormal.of(441.34, 410.91)  # [W]
# Two kinds of users, so that a chat has 2.52 turns in the mean, and 4 % have more than ten: 2.52 and 3.7 % in [W].
CHAT_TALKERS = 0.12
CHAT_TURNS, CHAT_TALKER_TURNS = 1.5, 10.0

# Batch jobs: the same instructions and examples before every question, in bursts. Most hits of API traffic are such
# single-turn requests, and 80 % of reuses come within 10 s [K]. All values are assumed.
BATCH_PROMPTS = 20
BATCH_EXAMPLE_SETS = 3  # for each prompt: they share the instructions
BATCH_PROMPT_TOKENS = Lognormal(300, 0.6)
BATCH_EXAMPLES = (4, 8)  # examples in a set, from and to
BATCH_EXAMPLE_TOKENS = Lognormal(150, 0.5)
BATCH_QUESTION_TOKENS = Lognormal(150, 0.8)
BATCH_ANSWER_TOKENS = Lognormal(60, 0.8)
BATCH_CALLS = 20.0  # in a burst, geometric
BATCH_GAP = 2.0  # seconds between its calls, exponential

# Agents: tools described at length, then tasks of steps; every step sends all before it again.
AGENT_PROMPTS = 6  # assumed
AGENT_PROMPT_TOKENS = Lognormal(5000, 0.4)  # assumed
AGENT_TASKS = 2.5  # a session, geometric; 9.2 in the mean, 1 in the median [T]: fewer here, as contexts end earlier
AGENT_STEPS = 7.8  # steps a task after its first, begun by a tool's answer, in the mean [T]; geometric is assumed
AGENT_TASK_TOKENS = Lognormal.of(295.58, 1609.18)  # as chats; assumed
AGENT_TOOL_TOKENS = Lognormal(600, 1.2)  # with the answer before it 710 to 954 in the median, beyond 32k of context [T]
AGENT_ANSWER_TOKENS = Lognormal.of(182, 182)  # mean of the tool & agent trace in the paper [M]; its spread is assumed
AGENT_TOOL_SECONDS = Lognormal(1.0, 1.5)  # assumed
