"""Did-you-mean for names in error messages. Knows words only."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean "x"?` for the closest known word, or "" when none is close."""
    close = difflib.get_close_matches(word.lower(), sorted(known), n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else ""
