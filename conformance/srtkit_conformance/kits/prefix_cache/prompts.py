"""Prompts that share, nearly share, and must not share their pages, each with the truth about its pages.

A page's content is a number that stands for the namespace and all token identities from position 0 through
the page's end, so equal numbers mean that one page may serve for the other. Knows no cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from srtkit.spec.prefix_cache import CacheKey
from srtkit.spec.step_plan import Ints

Spans = tuple[tuple[int, int, bytes], ...]


@dataclass(frozen=True, eq=False)
class Prompt:
    """A key and the content number of each of its whole pages."""

    key: CacheKey
    contents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.key.ids)


def numbered(page_size: int, keys: Iterable[CacheKey], lookahead: int = 0) -> list[Prompt]:
    """Prompts of these keys. Content numbers compare only within one call.

    `lookahead`: a page's content depends on so many tokens after it, and is nobody else's where they are unknown.
    """
    numbers: dict[object, int] = {}
    prompts = []
    for key in keys:
        identities: list[object] = key.ids.tolist()
        for start, stop, digest in key.spans:
            end = min(stop, len(identities))
            identities[start:end] = [(digest, stop - start, offset) for offset in range(end - start)]
        before, contents = numbers.setdefault(("namespace", key.namespace), len(numbers) + 1), []
        for end in range(page_size, len(identities) + 1, page_size):
            before = numbers.setdefault((before, tuple(identities[end - page_size : end])), len(numbers) + 1)
            after: object = tuple(identities[end : end + lookahead])
            if end + lookahead > len(identities):
                after = key
            contents.append(numbers.setdefault((before, after), len(numbers) + 1))
        prompts.append(Prompt(key, tuple(contents)))
    return prompts


def letters(page_size: int, text: str, namespace: bytes = b"", spans: Spans = (), priority: int = 0) -> CacheKey:
    """A key in which every letter stands for one page of its own tokens, a lower-case one for its first half."""
    parts = [
        np.arange(page_size if letter.isupper() else page_size // 2, dtype=np.int32) + 1000 * ord(letter.upper())
        for letter in text
    ]
    ids = np.concatenate(parts) if parts else np.empty(0, np.int32)
    return CacheKey(ids, namespace, spans, priority=priority)


def prompt_pool(page_size: int, random: np.random.Generator) -> list[Prompt]:
    """The prompts of the state machine; the nearest stand side by side, and `random` chooses their token ids."""
    page = page_size
    half = page // 2
    ids = 1 + random.permutation(12 * page).astype(np.int32)
    story, other = ids[: 5 * page], ids[5 * page : 10 * page]
    zeros = np.zeros(page, np.int32)
    again = np.tile(story[:page], 4)
    late = (3 * page, 4 * page, b"image-a")
    return numbered(
        page,
        [
            _key([story[:half]]),
            _key([story[: 3 * page + half]]),
            # A partial page filled up with padding must not pass for a whole one.
            _key([story[: 3 * page + half], zeros[: page - half], other[:page]]),
            _key([story[: 3 * page + half], other[:page]]),
            _key([story[: 2 * page], other[: 2 * page]]),
            _key([story]),
            _key([story], namespace=b"adapter"),
            _key([story[: 3 * page]], namespace=b"adapter\0"),
            _key([story], spans=((page, 2 * page, b"image-a"),)),
            _key([story], spans=((page, 2 * page, b"image-b"),)),
            _key([story], spans=((page, 3 * page, b"image-b"),)),
            _key([story], spans=((half, page + half + 1, b"image-a"), late)),
            _key([story], spans=((half, page + half + 1, b"image-b"), late)),
            _key([other[: 2 * page], story[: 2 * page]]),
            _key([again]),
            _key([again[: 2 * page], story[page : 3 * page]]),
        ],
    )


def _key(parts: Sequence[Ints], namespace: bytes = b"", spans: Spans = ()) -> CacheKey:
    return CacheKey(np.concatenate(parts), namespace, spans)
