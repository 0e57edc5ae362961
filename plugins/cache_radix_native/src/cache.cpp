// The calls of the contract, over the tree.
#include "cache.h"

#include <algorithm>
#include <atomic>

namespace radix {

namespace {

constexpr int LEASE_BITS = 40;  // of a lease's number; the bits above say whose it is

uint64_t next_cache() {
    static std::atomic<uint64_t> caches{0};
    return ++caches << LEASE_BITS;
}

}  // namespace

Cache::Cache(int64_t page_size, int64_t components, Policy policy, bool events, uint64_t hash_mask)
    : tree_(page_size, components, policy, hash_mask),
      first_lease_(next_cache()),
      next_lease_(first_lease_) {
    if (events) log_.emplace(page_size);
    out_.reserve(1024);
}

int64_t Cache::match(const Key& key) {
    ++now_;
    Node* node = &tree_.root(key.name());
    int64_t n_pages = 0;
    tree_.walk(*node, key.view(), [&](Node& child, int64_t common) {
        node = common == child.run.length() ? &child : &tree_.split(child, common);
        ++node->hits;
        n_pages += tree_.n_pages(*node);
    });
    tree_.touch(*node, now_, key.priority());
    lend(*node, n_pages);
    return n_pages;
}

int64_t Cache::peek(const Key& key) const {
    Node* root = tree_.find_root(key.name());
    int64_t tokens = 0;
    if (root != nullptr) tree_.walk(*root, key.view(), [&](Node&, int64_t common) { tokens += common; });
    return tokens / tree_.page_size;
}

int64_t Cache::insert(uint64_t number, const Key& key, const int32_t* mine, int64_t n_pages) {
    const Hold& hold = find(number);
    int64_t known = hold.n_pages;
    if (n_pages < known) throw Refused{Refusal::SHORT};
    if (hold.age != age_) {
        lease_ = number;
        show_pages(hold);
        show_remaps(mine, known);
        return known;
    }
    ++now_;
    Node* node = hold.node;
    View rest = key.view().tail(known * tree_.page_size);
    tree_.walk(*node, rest, [&](Node& child, int64_t common) {
        node = common == child.run.length() ? &child : &tree_.split(child, common);
        known += tree_.n_pages(*node);
    });
    if (known < n_pages) {
        rest = key.view().tail(known * tree_.page_size);
        std::vector<int32_t> pages(mine + known * tree_.components, mine + n_pages * tree_.components);
        node = &tree_.attach(*node, Run(rest), std::move(pages), now_, key.priority());
        if (log_) log_->stored(*node);
    }
    tree_.touch(*node, now_, key.priority());
    lend(*node, n_pages);
    end(number);
    show_remaps(mine, known);
    return n_pages;
}

int64_t Cache::release(uint64_t number) {
    find(number);  // or nothing changes
    out_.clear();
    end(number);
    return shown();
}

int64_t Cache::evict(int64_t n) {
    out_.clear();
    while (n > 0) {
        Node* leaf = tree_.next_leaf();
        if (leaf == nullptr) break;
        const int64_t taken = std::min(n, tree_.n_pages(*leaf));
        if (log_) log_->removed(*leaf, taken);
        tree_.trim(*leaf, taken, out_);
        n -= taken;
    }
    return shown();
}

int64_t Cache::reset() {
    ++age_;
    if (log_) log_->cleared();
    out_.clear();
    tree_.clear(out_);
    return shown();
}

EventLog Cache::take_events() {
    EventLog taken(tree_.page_size);
    if (log_) log_->take(taken);
    return taken;
}

const Cache::Hold& Cache::find(uint64_t number) const {
    if (number >> LEASE_BITS != first_lease_ >> LEASE_BITS) throw Refused{Refusal::FOREIGN};
    const auto hold = holds_.find(number);
    if (hold == holds_.end()) throw Refused{Refusal::ENDED};
    return hold->second;
}

// A new lease pins the prefix that ends at `node`, and shows its pages.
void Cache::lend(Node& node, int64_t n_pages) {
    const Hold hold{&node, n_pages, age_};
    tree_.pin(node);
    holds_.emplace(next_lease_, hold);
    lease_ = next_lease_++;
    show_pages(hold);
}

// End a lease; shows also the pages that became free because a reset had forgotten them.
void Cache::end(uint64_t number) {
    const Hold hold = find(number);
    holds_.erase(number);
    if (hold.age == age_) {
        tree_.unpin(*hold.node);
    } else {
        tree_.unpin_forgotten(*hold.node, out_);
    }
}

// From the last node up to the root: a lease's path has exactly its pages.
void Cache::show_pages(const Hold& hold) {
    out_.resize(hold.n_pages * tree_.components);
    auto place = out_.end();
    for (const Node* node = hold.node; node != nullptr; node = node->parent) {
        place = std::copy_backward(node->pages.begin(), node->pages.end(), place);
    }
}

// Where the first pages of the caller are not the cache's, which are shown.
void Cache::show_remaps(const int32_t* mine, int64_t n_pages) {
    const int64_t components = tree_.components;
    n_remaps_ = 0;
    if (std::equal(mine, mine + n_pages * components, out_.begin())) return;
    for (int64_t component = 0; component < components; ++component) {
        for (int64_t page = 0; page < n_pages; ++page) {
            const int64_t at = page * components + component;
            if (mine[at] == out_[at]) continue;
            const int32_t theirs = out_[at];
            out_.insert(out_.end(), {static_cast<int32_t>(component), static_cast<int32_t>(page), mine[at], theirs});
            ++n_remaps_;
        }
    }
}

}  // namespace radix
