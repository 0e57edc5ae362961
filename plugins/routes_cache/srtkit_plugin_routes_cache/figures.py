"""What the prefix cache keeps, how often it helps, and its tiers: the engine's answer and its latest figures, joined.

Knows what the engine answers (`PagePool.counts`, `CacheStats`, `Prefix`, as plain data); no cache and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from srtkit.spec.messages import Stats

Text = Callable[[Sequence[int]], str | None]


def figures(answer: Mapping[str, Any], stats: Stats, text: Text) -> dict[str, Any]:
    """The body of the route. `answer` is the engine's to "cache"."""
    cache = answer["cache"]
    pinned = cache["pinned_pages"]
    pages = {name: {**counts, "pinned": pinned.get(name, 0)} for name, counts in answer["pages"].items()}
    device = {
        "pages": sum(one["total"] for one in pages.values()),
        "used": sum(one["total"] - one["free"] for one in pages.values()),
    }
    return {
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "hit_rate": stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else None,
        "retracted": stats.retracted,
        "pages": pages,
        "tiers": {"device": device, **cache["tiers"]},
        "entries": cache["entries"],
        "extra": cache["extra"],
        "prefixes": listed(answer["prefixes"], text),
    }


def listed(prefixes: Sequence[Mapping[str, Any]], text: Text) -> list[dict[str, Any]]:
    """The outline, with counts of pages in place of pages, and the text of the ids."""
    found: list[dict[str, Any]] = []
    for one in prefixes:
        before = found[one["parent"]]["length"] if one["parent"] >= 0 else 0
        found.append(
            {
                "parent": one["parent"],
                "length": one["length"],
                "tokens": one["length"] - before,
                "ids": one["ids"],
                "text": text(one["ids"]),
                "namespace": _named(one["namespace"]),
                "pages": {name: sum(map(bool, pages)) for name, pages in one["pages"].items()},
                "tiers": one["tiers"],
                "hits": one["hits"],
                "pins": one["pins"],
            }
        )
    return found


def _named(namespace: bytes) -> str:
    """A name by which equal namespaces are known: a salt may be a secret."""
    return blake2b(namespace, digest_size=4).hexdigest() if namespace else ""
