// What changed in the tree, for cache-aware routing: chained 64-bit content hashes of whole pages, equal to those of
// the cache `radix`.
//
// A page's hash covers its whole prefix and namespace and is the same in every process. Hashing is work per page, so
// a cache without listeners has no log at all.
#pragma once

#include <string>
#include <vector>

#include "tree.h"

namespace radix {

enum class Event : uint64_t { STORED = 0, REMOVED = 1, CLEARED = 2 };

// Collects events until they are taken.
class EventLog {
  public:
    explicit EventLog(int64_t page_size) : page_size_(page_size) {}

    // A new node: hash its pages, keep the hashes on it for the day it goes.
    void stored(Node& node);
    // The last `n_pages` of a node are about to go.
    void removed(const Node& node, int64_t n_pages);
    // All is forgotten.
    void cleared();
    // All events since the last call move into `events`.
    void take(EventLog& events);

    // For each event: kind, hash before, size of the namespace, number n of hashes, n hashes.
    const std::vector<uint64_t>& numbers() const { return numbers_; }
    // The namespaces, one after the other.
    const std::string& names() const { return names_; }

  private:
    void add(Event kind, uint64_t before, const std::string& name, const uint64_t* hashes, int64_t n);

    int64_t page_size_;
    std::vector<uint64_t> numbers_;
    std::string names_;
};

}  // namespace radix
