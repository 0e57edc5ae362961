"""Stop strings in streamed text, against a search of the whole text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from srtkit.text.stream import StopMatcher

WORDS = st.text(alphabet="abé", min_size=1, max_size=5)


def naive(text: str, stops: list[str], include_stop: bool) -> tuple[str, str | None]:
    """The stop string that is complete first, of those that end together the longest."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end if include_stop else end - len(stop)], stop


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(
    text=st.text(alphabet="abé", max_size=30),
    stops=st.lists(WORDS, max_size=4),
    cuts=st.lists(st.integers(0, 6), max_size=40),
    include_stop=st.booleans(),
)
def test_any_cutting_of_a_text_ends_it_where_a_search_does(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    matcher = StopMatcher(stops, include_stop)
    expected, stop = naive(text, stops, include_stop)
    seen, at = "", 0
    for size in [*cuts, len(text)]:
        seen += matcher.push(text[at : at + size])
        at += size
        assert expected.startswith(seen)
    seen += matcher.flush()
    assert (seen, matcher.matched) == (expected, stop)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["\n\nUser:", "###"])
    assert matcher.push("one\n") == "one"
    assert matcher.push("two\n\nUse") == "\ntwo"
    assert matcher.push("d #") == "\n\nUsed "
    assert matcher.push("##") == ""
    assert matcher.matched == "###"
    assert matcher.push("after") == matcher.flush() == ""


def test_without_stop_strings_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("text") == "text"
    assert matcher.flush() == ""


def test_a_long_stop_string_costs_little() -> None:
    matcher = StopMatcher(["ab" * 2000 + "!"])
    text = "ab" * 5000
    assert "".join(matcher.push(char) for char in text[:4000]) == ""
    assert matcher.push("x") == text[:4000] + "x"
