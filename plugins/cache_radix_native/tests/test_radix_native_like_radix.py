"""The tests of the cache `radix`, all but those that look inside it, on this one."""

from __future__ import annotations

import pytest

from plugins.cache_radix.tests import (
    test_radix,
    test_radix_events,
    test_radix_outline,
    test_radix_policies,
    test_radix_spans,
)
from plugins.cache_radix.tests.test_radix import (  # noqa: F401
    test_a_lease_ends_once,
    test_a_parent_goes_only_after_its_children,
    test_a_partial_page_stays_the_callers,
    test_a_short_lease_pins_its_part_of_a_node_only,
    test_a_split_keeps_older_leases_whole,
    test_components_share_the_tree_and_keep_their_pages_apart,
    test_evictable_counts_what_no_lease_covers,
    test_evicts_exactly_as_many_from_the_ends,
    test_finds_the_longest_prefix_in_whole_pages,
    test_leased_pages_cannot_be_written,
    test_pages_it_has_already_stay_the_callers,
    test_peek_changes_neither_order_nor_nodes,
    test_reset_returns_pinned_pages_with_their_last_lease,
    test_what_it_does_not_declare_it_refuses,
)
from plugins.cache_radix.tests.test_radix_events import (  # noqa: F401
    test_hashes_depend_on_the_whole_prefix_and_nothing_else,
    test_off_unless_asked_for,
)
from plugins.cache_radix.tests.test_radix_outline import (  # noqa: F401
    test_pins_are_the_leases_that_need_a_prefix,
    test_prefixes_used_most_come_first_and_parents_before_them,
)
from plugins.cache_radix.tests.test_radix_policies import (  # noqa: F401
    test_a_higher_priority_is_kept_for_everybody_after,
    test_every_policy_has_a_name_in_the_options,
    test_order,
    test_segmented_lru_keeps_what_was_used_twice_through_a_scan,
)
from plugins.cache_radix.tests.test_radix_spans import (  # noqa: F401
    test_a_long_span_may_be_cut_anywhere,
    test_agree_as_far_as_spans_do,
    test_the_ids_under_a_span_do_not_count,
)
from plugins.cache_radix_native.tests.helpers import new_cache
from srtkit_plugin_cache_radix_native import RadixOptions, build, capabilities

MINE = {"new_cache": new_cache, "RadixOptions": RadixOptions, "build": build, "capabilities": capabilities}


@pytest.fixture(autouse=True)
def instead_of_radix(library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What those modules call is this cache."""
    for module in (test_radix, test_radix_events, test_radix_outline, test_radix_policies, test_radix_spans):
        for name in MINE.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, MINE[name])


def test_they_meet_this_cache_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_made(*_: object) -> None:
        raise AssertionError("the other cache was made")

    monkeypatch.setattr("srtkit_plugin_cache_radix.cache.RadixCache.__init__", none_made)
    test_finds_the_longest_prefix_in_whole_pages()
    test_off_unless_asked_for()
    test_order("lru", "BDAC")
    test_the_ids_under_a_span_do_not_count()
