"""What the tree keeps, for people to look at: the nodes used most, and who holds them. Changes nothing.

Looks at every child of the nodes that it lists and of those that are held, and at no others.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from srtkit.spec.prefix_cache import Prefix
from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix.tree import Node


def outlined(
    roots: Sequence[Node], limit: int, tokens: int, pages_of: Callable[[Node], Mapping[str, Ints]]
) -> list[Prefix]:
    """Up to `limit` nodes as prefixes with `tokens` of their ids each, parents first."""
    if limit < 1:
        return []
    pins = _leases(roots)
    places: dict[Node | None, int] = {}
    found: list[Prefix] = []
    for node in _by_use(roots, limit):
        parent = places.get(node.parent, -1)
        above = found[parent] if parent >= 0 else None
        places[node] = len(found)
        found.append(
            Prefix(
                parent=parent,
                length=node.n_tokens + (above.length if above else 0),
                ids=tuple(node.segment.ids[:tokens].tolist()),
                pages=pages_of(node),
                namespace=above.namespace if above else _namespace(node),
                hits=node.hits,
                pins=pins[node],
            )
        )
    return found


def _by_use(roots: Sequence[Node], limit: int) -> Iterator[Node]:
    """The nodes that were matched most often, then those used last. No node is used more than its parent."""
    heap: list[tuple[int, int, int, Node]] = []
    serial = count()
    parents: Sequence[Node] = roots
    for _ in range(limit):
        for parent in parents:
            for node in heapq.nlargest(limit, parent.children.values(), key=lambda one: (one.hits, one.used)):
                heapq.heappush(heap, (-node.hits, -node.used, next(serial), node))
        if not heap:
            return
        node = heapq.heappop(heap)[-1]
        yield node
        parents = (node,)


def _leases(roots: Sequence[Node]) -> Counter[Node]:
    """How many leases hold each node, those that end below it among them."""
    held = [root for root in roots if root.holds]
    for node in held:  # which grows
        held += [child for child in node.children.values() if child.holds]
    leases: Counter[Node] = Counter()
    for node in reversed(held):
        leases[node] += node.holds
        if node.parent is not None:
            leases[node.parent] += leases[node] - 1  # its hold there is one already
    return leases


def _namespace(node: Node) -> bytes:
    """Of a root's child."""
    assert node.parent is not None and isinstance(node.parent.key, bytes)
    return node.parent.key
