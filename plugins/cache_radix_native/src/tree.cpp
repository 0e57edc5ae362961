// Splitting, pinning, ranking and giving back nodes. No recursion: paths may be as long as a context has pages.
#include "tree.h"

#include <algorithm>
#include <cassert>

namespace radix {

Node::Node(Run run, std::vector<int32_t> pages, uint64_t key, Node* parent)
    : run(std::move(run)), pages(std::move(pages)), key(key), parent(parent) {
    ++alive;
}

Node::~Node() { --alive; }

// --- children ---

Children::~Children() = default;

void Children::add(uint64_t key, std::unique_ptr<Node> child) {
    if (only_ == nullptr && many_ == nullptr) {
        key_ = key;
        only_ = std::move(child);
        return;
    }
    if (many_ == nullptr) many_ = std::make_unique<std::unordered_multimap<uint64_t, std::unique_ptr<Node>>>();
    if (only_ != nullptr) many_->emplace(key_, std::move(only_));
    many_->emplace(key, std::move(child));
}

std::unique_ptr<Node> Children::take(uint64_t key, const Node& child) {
    if (only_.get() == &child) return std::move(only_);
    const auto is_it = [&](const auto& entry) { return entry.second.get() == &child; };
    const auto place = std::find_if(many_->find(key), many_->end(), is_it);
    assert(place != many_->end());
    std::unique_ptr<Node> taken = std::move(place->second);
    many_->erase(place);
    return taken;
}

Node* Children::any() const {
    if (only_ != nullptr || many_ == nullptr || many_->empty()) return only_.get();
    return many_->begin()->second.get();
}

// --- queue ---

void Queue::push(const Rank& rank, Node& node) {
    auto ticket = std::make_unique<Ticket>(Ticket{&node});
    node.ticket = ticket.get();
    heap_.push_back({rank, std::move(ticket)});
    std::push_heap(heap_.begin(), heap_.end());
    ++live_;
}

void Queue::discard(Node& node) {
    node.ticket->node = nullptr;
    node.ticket = nullptr;
    --live_;
    if (heap_.size() <= 2 * live_ + 64) return;
    const auto is_out = [](const Entry& entry) { return entry.ticket->node == nullptr; };
    heap_.erase(std::remove_if(heap_.begin(), heap_.end(), is_out), heap_.end());
    std::make_heap(heap_.begin(), heap_.end());
}

Node* Queue::first() {
    while (!heap_.empty() && heap_.front().ticket->node == nullptr) {
        std::pop_heap(heap_.begin(), heap_.end());
        heap_.pop_back();
    }
    return heap_.empty() ? nullptr : heap_.front().ticket->node;
}

// --- tree ---

Tree::Tree(int64_t page_size, int64_t components, Policy policy, uint64_t hash_mask)
    : page_size(page_size), components(components), policy_(policy), hash_mask_(hash_mask) {}

// Leaf by leaf: a chain may be too long for destructors that call each other, and there may be no memory for a stack.
Tree::~Tree() {
    for (auto& [name, root] : roots_) {
        for (Node* node = root.get(); node != nullptr;) {
            if (Node* child = node->children.any()) {
                node = child;
                continue;
            }
            Node* parent = node->parent;
            if (parent != nullptr) parent->children.take(node->key, *node);
            node = parent;
        }
    }
}

// --- finding ---

Node* Tree::find_root(const std::string& name) const {
    const auto found = roots_.find(name);
    return found == roots_.end() ? nullptr : found->second.get();
}

Node& Tree::root(const std::string& name) {
    std::unique_ptr<Node>& root = roots_[name];
    if (root == nullptr) {
        root = std::make_unique<Node>(Run(), std::vector<int32_t>(), 0, nullptr);
        root->name = std::make_unique<const std::string>(name);
    }
    return *root;
}

// The child whose first page `rest` has, and how many of its tokens agree, in whole pages; null without one.
std::pair<Node*, int64_t> Tree::find_child(Node& node, const View& rest) const {
    int64_t common = 0;
    Node* child = node.children.find(key_of(rest), [&](const Node& one) {
        common = one.run.view().common(rest);
        return common >= page_size;
    });
    return {child, child == nullptr ? 0 : common - common % page_size};
}

// --- changing ---

Node& Tree::split(Node& node, int64_t at) {
    const int64_t cut = at / page_size;
    const auto middle = node.pages.begin() + cut * components;
    Run tail = node.run.cut(at);
    std::vector<int32_t> tail_pages(middle, node.pages.end());
    cut_vector(node.pages, cut * components);
    auto made = std::make_unique<Node>(std::move(node.run), std::move(node.pages), node.key, node.parent);
    Node& upper = *made;
    upper.created = node.created, upper.used = node.used, upper.hits = node.hits, upper.priority = node.priority;
    upper.holds = node.holds > 0 ? 1 : 0;
    if (!node.hashes.empty()) {
        upper.hashes.assign(node.hashes.begin(), node.hashes.begin() + cut);
        node.hashes = std::vector<uint64_t>(node.hashes.begin() + cut, node.hashes.end());
    }
    std::unique_ptr<Node> lower = node.parent->children.take(node.key, node);
    node.parent->children.add(upper.key, std::move(made));
    node.run = std::move(tail);
    node.pages = std::move(tail_pages);
    node.key = key_of(node.run.view());
    node.parent = &upper;
    upper.children.add(node.key, std::move(lower));
    ++nodes;
    return upper;
}

Node& Tree::attach(Node& parent, Run run, std::vector<int32_t> pages, int64_t now, int64_t priority) {
    const uint64_t key = key_of(run.view());
    auto made = std::make_unique<Node>(std::move(run), std::move(pages), key, &parent);
    Node& node = *made;
    node.created = node.used = now;
    node.priority = priority;
    parent.children.add(key, std::move(made));
    evictable += n_pages(node);
    ++nodes;
    return node;
}

void Tree::touch(Node& end, int64_t now, int64_t priority) {
    for (Node* node = &end; node != nullptr; node = node->parent) {
        node->used = now;
        node->priority = std::max(node->priority, priority);
    }
}

// --- pinning ---

void Tree::pin(Node& end) {
    for (Node* node = &end; node != nullptr && ++node->holds == 1; node = node->parent) {
        evictable -= n_pages(*node);
        pinned += n_pages(*node);
        if (node->ticket != nullptr) queue_.discard(*node);
    }
}

void Tree::unpin(Node& end) {
    for (Node *node = &end, *parent; node != nullptr && --node->holds == 0; node = parent) {
        parent = node->parent;
        pinned -= n_pages(*node);
        evictable += n_pages(*node);
        settle(*node);  // a root may go
    }
}

void Tree::unpin_forgotten(Node& end, std::vector<int32_t>& pages) {
    for (Node *node = &end, *parent; node != nullptr && --node->holds == 0; node = parent) {
        parent = node->parent;
        pinned -= n_pages(*node);
        pages.insert(pages.end(), node->pages.begin(), node->pages.end());
        forgotten_.erase(node);
    }
}

Rank Tree::rank_of(const Node& node) {
    ++serial_;
    switch (policy_) {
        case Policy::LRU: break;
        case Policy::LFU: return {node.hits, node.used, serial_};
        case Policy::FIFO: return {node.created, 0, serial_};
        // Segmented LRU: what has been matched at least once outlives everything seen only once.
        case Policy::SLRU: return {node.hits > 0, node.used, serial_};
        case Policy::PRIORITY: return {node.priority, node.used, serial_};
    }
    return {node.used, 0, serial_};
}

// A node lost its last hold or a child: queue it if it may go now. An empty root goes at once. A leaf's rank cannot
// change while it is queued, because using a leaf pins it.
void Tree::settle(Node& node) {
    if (node.holds > 0 || !node.children.empty()) return;
    if (node.parent == nullptr) {
        roots_.erase(roots_.find(*node.name));  // by iterator: the name dies with the node
    } else {
        queue_.push(rank_of(node), node);
    }
}

// --- giving back ---

void Tree::trim(Node& leaf, int64_t n, std::vector<int32_t>& pages) {
    assert(leaf.ticket != nullptr && leaf.children.empty());
    const int64_t keep = n_pages(leaf) - n;
    pages.insert(pages.end(), leaf.pages.begin() + keep * components, leaf.pages.end());
    evictable -= n;
    const Run gone = leaf.run.cut(keep * page_size);
    if (keep > 0) leaf.run.fit();
    if (keep == 0 || !leaf.run.shares_memory(gone)) {  // it has let go of memory that parts above it may have, too
        for (Node* part = leaf.parent; part->run.shares_memory(gone); part = part->parent) part->run.fit();
    }
    if (keep > 0) {
        cut_vector(leaf.pages, keep * components);
        if (!leaf.hashes.empty()) cut_vector(leaf.hashes, keep);
        return;
    }
    queue_.discard(leaf);
    Node& parent = *leaf.parent;
    parent.children.take(leaf.key, leaf);
    --nodes;
    settle(parent);
}

void Tree::clear(std::vector<int32_t>& pages) {
    std::vector<std::unique_ptr<Node>> stack;
    for (auto& [name, root] : roots_) stack.push_back(std::move(root));
    while (!stack.empty()) {
        std::unique_ptr<Node> node = std::move(stack.back());
        stack.pop_back();
        while (Node* child = node->children.any()) stack.push_back(node->children.take(child->key, *child));
        node->ticket = nullptr;
        if (node->holds > 0) {
            Node* held = node.get();
            forgotten_.emplace(held, std::move(node));
        } else {
            pages.insert(pages.end(), node->pages.begin(), node->pages.end());
        }
    }
    roots_.clear();
    queue_.clear();
    evictable = nodes = 0;
}

}  // namespace radix
