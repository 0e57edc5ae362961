// Leases over the tree, and what a call gives back. Knows events; nothing of Python, names of components or options.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "abi.h"
#include "events.h"
#include "tree.h"

namespace radix {

// Thrown before anything has changed.
struct Refused {
    Refusal why;
};

// One prefix cache. Every call returns a number of pages, which lie in `state.out`.
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
    // Show the events since the last call.
    int64_t take_events();
    // Bring `state` up to date.
    void publish();

    int64_t page_size() const { return tree_.page_size; }

    State state{};
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
    EventLog taken_;
    std::unordered_map<uint64_t, Hold> holds_;
    std::vector<int32_t> out_;
    int64_t now_ = 0, age_ = 0;
    const uint64_t first_lease_;
    uint64_t next_lease_;
};

}  // namespace radix
