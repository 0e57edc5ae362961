// The radix tree: nodes that hold whole pages, who pins them, and which leaves may go.
//
// Knows runs of tokens; no leases, no events, no components but their number. Every node stands for the prefix from
// its namespace's root through its own last token. Counts and lengths are int64: tokens, or pages where it says so.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "keys.h"

namespace radix {

// Which unpinned leaf goes first; the option `eviction`, in its order.
enum class Policy : int32_t { LRU = 0, LFU = 1, FIFO = 2, SLRU = 3, PRIORITY = 4 };

struct Node;

using Roots = std::unordered_map<std::string, std::unique_ptr<Node>>;

// A node's children by the hash of their first page. Most nodes have one at most, which needs no table.
class Children {
  public:
    Children() = default;
    ~Children();
    Children(const Children&) = delete;
    Children& operator=(const Children&) = delete;

    bool empty() const { return any() == nullptr; }
    // A child of that hash for which test(child) is true, or null.
    template <class Test>
    Node* find(uint64_t key, Test test) const;
    // visit(child) for each.
    template <class Visit>
    void each(Visit visit) const;
    void add(uint64_t key, std::unique_ptr<Node> child);
    // Out of them.
    std::unique_ptr<Node> take(uint64_t key, const Node& child);
    // One of them, or null.
    Node* any() const;

  private:
    uint64_t key_ = 0;
    std::unique_ptr<Node> only_;
    std::unique_ptr<std::unordered_multimap<uint64_t, std::unique_ptr<Node>>> many_;  // once there have been two
};

// The smallest rank goes first: two figures of the policy, then who was queued first.
using Rank = std::array<int64_t, 3>;

// Leaves that may go. One that is taken out leaves its entry behind, which is passed over when it comes to the front,
// or goes with all others of its kind once they are the most.
class Queue {
  public:
    struct Ticket {
        Node* node;  // null once it is out
    };

    void push(const Rank& rank, Node& node);
    void discard(Node& node);
    // The leaf that goes first, or null.
    Node* first();
    void clear() { heap_.clear(), live_ = 0; }

  private:
    struct Entry {
        Rank rank;
        std::unique_ptr<Ticket> ticket;
        bool operator<(const Entry& other) const { return rank > other.rank; }  // the front of a heap is its largest
    };

    std::vector<Entry> heap_;
    size_t live_ = 0;
};

// One run of pages with the same users. A root has no parent and no pages.
struct Node {
    Node(Run run, std::vector<int32_t> pages, uint64_t key, Node* parent);
    ~Node();
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    // Nodes that exist in this process, so that a test sees that none leaks.
    static inline std::atomic<int64_t> alive{0};

    Run run;
    std::vector<int32_t> pages;  // [pages, components]
    uint64_t key;                // its place among the parent's children
    Node* parent;
    Children children;
    int64_t holds = 0;  // leases that end here and children that are held; pinned while it is above 0
    Queue::Ticket* ticket = nullptr;  // while it is queued
    std::vector<uint64_t> hashes;                      // of its pages, if events are on
    int64_t created = 0, used = 0, hits = 0, priority = 0;  // times are ticks of the cache's own clock
    std::unique_ptr<const std::string> name;           // of a root: its namespace
};

// All nodes of all namespaces, counted in pages: `evictable` (unpinned) and `pinned`.
class Tree {
  public:
    // `hash_mask`: the bits of hashes that are used; tests set 0, so that all pages collide.
    Tree(int64_t page_size, int64_t components, Policy policy, uint64_t hash_mask);
    ~Tree();

    // --- finding ---

    // By namespace.
    const Roots& roots() const { return roots_; }
    // The root of a namespace, or null.
    Node* find_root(const std::string& name) const;
    // The root of a namespace; a new one stays only if it is pinned before anything else happens.
    Node& root(const std::string& name);
    // Go down from `node` along `rest`: visit(child, how many of its tokens agree: whole pages, > 0) for each child.
    // It may split the child at that number.
    template <class Visit>
    void walk(Node& node, View rest, Visit visit) const;

    // --- changing ---

    // Cut a node after `at` tokens (whole pages, inside it). Returns the new upper part; `node` becomes the lower
    // part: leases and the queue go on meaning it.
    Node& split(Node& node, int64_t at);
    // A new leaf below `parent`, which has no such child. It must be pinned next: it is not queued.
    Node& attach(Node& parent, Run run, std::vector<int32_t> pages, int64_t now, int64_t priority);
    // Note that the prefix ending at `node` is being used.
    void touch(Node& node, int64_t now, int64_t priority);

    // --- pinning ---

    // One more lease ends at `node`. Its ancestors are pinned through it.
    void pin(Node& node);
    // One lease less ends at `node`.
    void unpin(Node& node);
    // `unpin` for a node from before the last `clear`: appends the pages nobody holds now.
    void unpin_forgotten(Node& node, std::vector<int32_t>& pages);

    // --- giving back ---

    // The leaf that goes first, or null.
    Node* next_leaf() { return queue_.first(); }
    // Take the last pages off the leaf that goes first, and the leaf away with its last page; appends the pages.
    void trim(Node& leaf, int64_t n_pages, std::vector<int32_t>& pages);
    // Forget all nodes: appends the unpinned pages; pinned nodes stay until their leases end.
    void clear(std::vector<int32_t>& pages);

    int64_t n_pages(const Node& node) const { return node.run.length() / page_size; }

    const int64_t page_size;
    const int64_t components;
    int64_t evictable = 0, pinned = 0;
    int64_t nodes = 0;  // without roots

  private:
    std::pair<Node*, int64_t> find_child(Node& node, const View& rest) const;
    uint64_t key_of(const View& run) const { return run.head(page_size).hash() & hash_mask_; }
    Rank rank_of(const Node& node);
    void settle(Node& node);

    const Policy policy_;
    const uint64_t hash_mask_;
    int64_t serial_ = 0;
    Queue queue_;
    Roots roots_;
    std::unordered_map<Node*, std::unique_ptr<Node>> forgotten_;  // by `clear`, and still held
};

template <class Test>
Node* Children::find(uint64_t key, Test test) const {
    if (only_ != nullptr && key_ == key && test(*only_)) return only_.get();
    if (many_ == nullptr) return nullptr;
    // Not equal_range, which also reads the entry behind: memory that is in no processor cache.
    for (auto entry = many_->find(key); entry != many_->end() && entry->first == key; ++entry) {
        if (test(*entry->second)) return entry->second.get();
    }
    return nullptr;
}

template <class Visit>
void Children::each(Visit visit) const {
    if (only_ != nullptr) visit(*only_);
    if (many_ == nullptr) return;
    for (const auto& [key, child] : *many_) visit(*child);
}

template <class Visit>
void Tree::walk(Node& from, View rest, Visit visit) const {
    Node* node = &from;
    while (rest.length >= page_size) {
        const auto [child, common] = find_child(*node, rest);
        if (child == nullptr) return;
        const bool whole = common == child->run.length();
        visit(*child, common);
        if (!whole) return;
        node = child;
        rest = rest.tail(common);
    }
}

}  // namespace radix
