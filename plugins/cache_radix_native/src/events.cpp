// Hashing pages, and putting events into flat arrays.
#include "events.h"

#include "blake2b.h"

namespace radix {

namespace {

const std::string& name_of(const Node& node) {
    const Node* root = &node;
    while (root->parent != nullptr) root = root->parent;
    return *root->name;
}

// Hash of the last page before the node, 0 if it begins the prefix.
uint64_t hash_before(const Node& node) { return node.parent->hashes.empty() ? 0 : node.parent->hashes.back(); }

uint64_t hash_name(const std::string& name) {
    Blake2b hash;
    hash.update(name.data(), name.size());
    return hash.digest();
}

// Hash of a page after the hash of what comes before it; never 0, which stands for "nothing before".
uint64_t chained(uint64_t before, const View& page) {
    Blake2b hash;
    hash.update(&before, sizeof before);
    hash.update(page.ids, page.length * sizeof(int32_t));
    for (const Mark* mark = page.first; mark != page.last; ++mark) {
        const auto size = static_cast<uint32_t>(mark->identity.size());
        hash.update(&size, sizeof size);
        hash.update(mark->identity.data(), size);
    }
    const uint64_t found = hash.digest();
    return found != 0 ? found : 1;
}

}  // namespace

void EventLog::stored(Node& node) {
    const std::string& name = name_of(node);
    const uint64_t first = hash_before(node);
    uint64_t before = first != 0 ? first : hash_name(name);
    for (View rest = node.run.view(); rest.length > 0; rest = rest.tail(page_size_)) {
        before = chained(before, rest.head(page_size_));
        node.hashes.push_back(before);
    }
    add(Event::STORED, first, name, node.hashes.data(), static_cast<int64_t>(node.hashes.size()));
}

void EventLog::removed(const Node& node, int64_t n_pages) {
    const int64_t keep = static_cast<int64_t>(node.hashes.size()) - n_pages;
    const uint64_t before = keep > 0 ? node.hashes[keep - 1] : hash_before(node);
    add(Event::REMOVED, before, name_of(node), node.hashes.data() + keep, n_pages);
}

void EventLog::cleared() { add(Event::CLEARED, 0, {}, nullptr, 0); }

void EventLog::take(EventLog& events) {
    events = std::move(*this);
    numbers_.clear();
    names_.clear();
}

void EventLog::add(Event kind, uint64_t before, const std::string& name, const uint64_t* hashes, int64_t n) {
    numbers_.insert(numbers_.end(), {static_cast<uint64_t>(kind), before, name.size(), static_cast<uint64_t>(n)});
    numbers_.insert(numbers_.end(), hashes, hashes + n);
    names_ += name;
}

}  // namespace radix
