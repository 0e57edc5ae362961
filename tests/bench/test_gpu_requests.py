"""What our benchmark asks of a server is what the other engines were asked: prompts, and how many tokens to make."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from bench.gpu import serve


def digest(requests: Any) -> str:
    """Of token ids and numbers of tokens."""
    return hashlib.sha256(json.dumps(requests).encode()).hexdigest()[:12]


def test_the_requests_are_those_that_other_engines_were_given() -> None:
    """Measured once, and compared with since: a change here makes every comparison in docs/performance.md wrong."""
    assert digest(serve.varied()) == "d72f19b57246"
    assert digest([prompt for prompt, _ in serve.fixed(64, 1024, 1, 2)]) == "999eb8acdd03"
    assert digest([prompt for prompt, _ in serve.common(500)]) == "10abad665dd5"


def test_they_ask_for_as_many_tokens() -> None:
    assert {tokens for _, tokens in serve.fixed(2, 4, 128, 0)} == {128}
    assert {tokens for _, tokens in serve.common(500)} == {64}
