// Leases over the tree, and what a call gives back. Knows events; nothing of Python, names of components or options.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "events.h"
#include "outline.h"
#include "tree.h"

namespace radix {

// Why a call was refused.
enum class Refusal { ENDED, FOREIGN, SHORT };

// Thrown before anything has changed.
struct Refused {
    Refusal why;
};

// Pages that no lease covers, and those that one does; nodes without roots.
struct Figures {
    int64_t evictable = 0, pinned = 0, nodes = 0;
};

// One prefix cache. Calls return a number of pages, which lie in `out` until the next call.
class Cache {
  public:
    Cache(int64_t page_size, int64_t components, Policy policy, bool events, uint64_t hash_mask);

    // The longest prefix in whole pages, pinned by a new lease. Splits a node that is shared only in part.
    int64_t match(const Key& key);
    // What `match` would give; changes nothing.
    int64_t peek(const Key& key) const;
    // Take `n_pages` pages of a key; a new lease replaces `number`, or the same stays if it is older than a reset.
    int64_t insert(uint64_t number, const Key& key, const int32_t* mine, int64_t n_pages);
    // End a lease; gives back the pages that a reset left to it.
    int64_t release(uint64_t number);
    // Free min(n, evictable) pages, from the ends of the leaves that go first.
    int64_t evict(int64_t n);
    // Forget everything but what leases hold.
    int64_t reset();
    // Up to `limit` of its nodes, see outline.h; they are the cache's, until the next call.
    std::vector<Shown> outline(int64_t limit) const { return radix::outline(tree_, limit); }
    // The events since the last call.
    EventLog take_events();

    int64_t page_size() const { return tree_.page_size; }
    int64_t components() const { return tree_.components; }
    Figures figures() const { return {tree_.evictable, tree_.pinned, tree_.nodes}; }

    // Of the last call: pages [n, components], then of `insert` the remaps (component, index, mine, theirs).
    const int32_t* out() const { return out_.data(); }
    int64_t n_remaps() const { return n_remaps_; }
    // The lease that `match` or `insert` returned.
    uint64_t lease() const { return lease_; }

    // After an exception that is no refusal: nothing may be called any more.
    bool broken = false;

  private:
    // Node and length of a pinned prefix, and how often the cache had been reset when it was pinned.
    struct Hold {
        Node* node;
        int64_t n_pages;
        int64_t age;
    };

    const Hold& find(uint64_t number) const;
    void lend(Node& node, int64_t n_pages);
    void end(uint64_t number);
    void show_pages(const Hold& hold);
    void show_remaps(const int32_t* mine, int64_t n_pages);
    int64_t shown() const { return static_cast<int64_t>(out_.size()) / tree_.components; }

    Tree tree_;
    std::optional<EventLog> log_;
    std::unordered_map<uint64_t, Hold> holds_;
    std::vector<int32_t> out_;
    int64_t n_remaps_ = 0;
    uint64_t lease_ = 0;
    int64_t now_ = 0, age_ = 0;
    const uint64_t first_lease_;
    uint64_t next_lease_;
};

}  // namespace radix
