"""The radix tree: nodes that hold whole pages, who pins them, and which leaves may go.

Knows segments, page ids, and that budgets stand beside; no leases, no events, no components by name. Every
node stands for the prefix from its namespace's root through its own last token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from srtkit.spec.step_plan import Ints
from srtkit_plugin_cache_radix.budget import Budget
from srtkit_plugin_cache_radix.keys import PageId, Segment
from srtkit_plugin_cache_radix.policies import EvictionQueue, Rank, Ticket, Usage


class Node:
    """One run of pages with the same users. `pages` is int32 [components, pages] and read-only.

    Components are those of reach "all"; `beside` is what each budget keeps here. `holds` counts the leases that
    end here and the children that are held: the node is pinned while it is above 0, and nothing below a node with
    `holds` 0 is pinned. `key` is the place among the parent's children; a root has no parent, no pages, and the
    namespace as its key.
    """

    __slots__ = (
        *("segment", "pages", "key", "parent", "children", "holds", "ticket", "hashes"),
        *("created", "used", "hits", "priority", "beside"),
    )

    def __init__(self, segment: Segment, pages: Ints, key: PageId, parent: Node | None) -> None:
        self.segment = segment
        self.pages = pages
        self.key = key
        self.parent = parent
        self.children: dict[PageId, Node] = {}
        self.holds = 0
        self.ticket: Ticket | None = None
        self.hashes: tuple[int, ...] = ()
        self.created = self.used = self.hits = self.priority = 0
        self.beside: list[Any] = []

    @property
    def n_pages(self) -> int:
        """Pages of each component."""
        n: int = self.pages.shape[1]
        return n

    @property
    def n_tokens(self) -> int:
        """Tokens of its segment."""
        return len(self.segment.ids)


class Tree:
    """All nodes of all namespaces, counted in pages: `evictable` (unpinned) and `pinned`.

    Without components of reach "all" a node stays for what its budgets keep at it or below it. `on_trim(node, n)`
    is called before the last n pages of a node go.
    """

    def __init__(
        self,
        components: int,
        page_size: int,
        rank: Callable[[Usage], Rank],
        budgets: Sequence[Budget] = (),
        on_trim: Callable[[Node, int], None] | None = None,
    ) -> None:
        self.page_size = page_size
        self._on_trim = on_trim
        self._budgets = budgets
        self._bare = components == 0
        self.evictable = 0
        self.pinned = 0
        self.nodes = 0
        self._rank = rank
        self._queue: EvictionQueue[Node] = EvictionQueue()
        self._roots: dict[bytes, Node] = {}
        self._no_pages = _frozen(np.empty((components, 0), np.int32))
        self._no_tokens = Segment(_frozen(np.empty(0, np.int32)))

    # --- finding ---

    @property
    def roots(self) -> Sequence[Node]:
        """The root of every namespace."""
        return list(self._roots.values())

    def find_root(self, namespace: bytes) -> Node | None:
        """The root of a namespace, if it has one."""
        return self._roots.get(namespace)

    def root(self, namespace: bytes) -> Node:
        """The root of a namespace; a new one stays only if it is pinned before anything else happens."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = Node(self._no_tokens, self._no_pages, namespace, None)
        return node

    def walk(self, node: Node, rest: Segment) -> Iterator[tuple[Node, int]]:
        """Go down from `node` along `rest`: each child met, and how many of its tokens agree (whole pages, > 0).

        The caller may split a child at that number before it asks for the next.
        """
        page_size = self.page_size
        left = len(rest.ids)
        while left >= page_size:
            child = node.children.get(rest.page_id(page_size))
            if child is None:
                return
            length = child.n_tokens
            common = child.segment.common(rest)
            common -= common % page_size
            left -= common
            yield child, common
            if common < length or not left:
                return
            node, rest = child, rest.tail(common)

    # --- changing ---

    def split(self, node: Node, at: int) -> Node:
        """Cut a node after `at` tokens (whole pages, inside it). Returns the new upper part.

        `node` becomes the lower part: leases and the queue go on meaning it.
        """
        cut = at // self.page_size
        upper = Node(node.segment.head(at).copy(), node.pages[:, :cut], node.key, node.parent)
        upper.created, upper.used, upper.hits, upper.priority = node.created, node.used, node.hits, node.priority
        upper.hashes, node.hashes = node.hashes[:cut], node.hashes[cut:]
        upper.holds = 1 if node.holds else 0
        _parent(node).children[node.key] = upper
        node.segment, node.pages = node.segment.tail(at).copy(), node.pages[:, cut:]
        node.key, node.parent = node.segment.page_id(self.page_size), upper
        upper.children[node.key] = node
        self.nodes += 1
        upper.beside = [None] * len(self._budgets)
        for budget in self._budgets:
            budget.split(upper, node)
        return upper

    def attach(self, parent: Node, segment: Segment, pages: Ints, now: int, priority: int) -> Node:
        """A new leaf below `parent`; both arrays become the tree's. It must be pinned next: it is not queued."""
        node = Node(segment, _frozen(pages), segment.page_id(self.page_size), parent)
        assert node.key not in parent.children
        node.created = node.used = now
        node.priority = priority
        parent.children[node.key] = node
        self.evictable += node.n_pages
        self.nodes += 1
        node.beside = [None] * len(self._budgets)
        for budget in self._budgets:
            budget.attach(node)
        return node

    def touch(self, node: Node | None, now: int, priority: int) -> None:
        """Note that the prefix ending at `node` is being used."""
        while node is not None:
            node.used = now
            if node.priority < priority:
                node.priority = priority
            node = node.parent

    # --- pinning ---

    def pin(self, node: Node | None) -> None:
        """One more lease ends at `node`. Its ancestors are pinned through it."""
        while node is not None:
            node.holds += 1
            if node.holds > 1:
                return
            self.evictable -= node.n_pages
            self.pinned += node.n_pages
            if node.ticket is not None:
                self._queue.discard(node.ticket)
                node.ticket = None
            node = node.parent

    def unpin(self, node: Node) -> None:
        """One lease less ends at `node`."""
        freed = self._unhold(node)
        self.evictable += sum(one.n_pages for one in freed)
        if freed:
            self._settle(freed[0])  # the others have children

    def unpin_forgotten(self, node: Node) -> list[Ints]:
        """`unpin` for a node from before the last `clear`: returns the pages nobody holds now."""
        return [freed.pages for freed in self._unhold(node)]

    def _unhold(self, node: Node | None) -> list[Node]:
        """Lower the count; the nodes that nobody holds any more, deepest first."""
        freed = []
        while node is not None:
            node.holds -= 1
            if node.holds:
                break
            self.pinned -= node.n_pages
            freed.append(node)
            node = node.parent
        return freed

    def _settle(self, node: Node) -> None:
        """A node lost its last hold, or a child: queue it if it may go now. An empty root goes at once.

        So does a node that nothing needs any more, and then its parent, and so on: a chain may have any length.
        """
        while not (node.holds or node.children):
            if node.parent is None:
                assert isinstance(node.key, bytes)
                del self._roots[node.key]
                return
            if node.ticket is None:
                node.ticket = self._queue.push(self._rank(node), node)
            if not self._bare or any(budget.at(node).any() for budget in self._budgets):
                return
            parent = node.parent
            self._cut(node, node.n_pages)
            node = parent

    def prune(self, emptied: Sequence[Node]) -> None:
        """Budgets have nothing left at these nodes: they go, if nothing else needs them."""
        for node in emptied if self._bare else ():
            parent = node.parent
            if parent is not None and parent.children.get(node.key) is node:  # else it went with another of them
                self._settle(node)

    # --- giving back ---

    def next_leaf(self) -> Node | None:
        """The leaf that goes first."""
        return self._queue.first()

    def trim(self, leaf: Node, n_pages: int) -> list[Ints]:
        """Take the last pages off a leaf that may go, and the leaf away with its last page.

        Returns the pages [components, pages], then what goes with them of each budget.
        """
        parent, whole = _parent(leaf), n_pages == leaf.n_pages
        pages = self._cut(leaf, n_pages)
        if whole:
            self._settle(parent)
        return pages

    def _cut(self, leaf: Node, n_pages: int) -> list[Ints]:
        """`trim`, but that its parent is not looked at."""
        if self._on_trim is not None:
            self._on_trim(leaf, n_pages)
        keep = leaf.n_pages - n_pages
        pages = [leaf.pages[:, keep:], *(budget.trim(leaf, keep) for budget in self._budgets)]
        self.evictable -= n_pages
        if keep:
            leaf.segment, leaf.pages = leaf.segment.head(keep * self.page_size), leaf.pages[:, :keep]
            leaf.hashes = leaf.hashes[:keep]
            whole = leaf.segment.ids.base
            if whole is not None and len(whole) > 2 * leaf.n_tokens:
                leaf.segment = leaf.segment.copy()  # a view would keep the whole array alive
            return pages
        assert leaf.ticket is not None and not leaf.children
        self._queue.discard(leaf.ticket)
        leaf.ticket = None
        del _parent(leaf).children[leaf.key]
        self.nodes -= 1
        return pages

    def clear(self) -> tuple[list[Ints], list[list[Ints]]]:
        """Forget all nodes; what is pinned stays with its leases.

        Returns the unpinned pages, and what goes of each budget.
        """
        pages = []
        beside: list[list[Ints]] = [[] for _ in self._budgets]
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            node.children = {}
            if not node.holds:
                pages.append(node.pages)
            if node.parent is not None:
                for budget, gone in zip(self._budgets, beside, strict=True):
                    gone.append(budget.forget(node))
        self._roots.clear()
        self._queue.clear()
        self.evictable = self.nodes = 0
        return pages, beside


def _parent(node: Node) -> Node:
    assert node.parent is not None, "a root is never split or evicted"
    return node.parent


def _frozen(values: Ints) -> Ints:
    values.flags.writeable = False
    return values
