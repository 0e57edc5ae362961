// Counting leases and ranking nodes.
#include "outline.h"

#include <queue>
#include <tuple>
#include <unordered_map>

namespace radix {

namespace {

using Leases = std::unordered_map<const Node*, int64_t>;

// How many leases hold each node that is held, those that end below it among them.
Leases leases(const Tree& tree) {
    std::vector<const Node*> held;
    for (const auto& [name, root] : tree.roots()) {
        if (root->holds > 0) held.push_back(root.get());
    }
    for (size_t at = 0; at < held.size(); ++at) {  // which grows
        held[at]->children.each([&](const Node& child) {
            if (child.holds > 0) held.push_back(&child);
        });
    }
    Leases found;
    for (auto node = held.rbegin(); node != held.rend(); ++node) {
        const int64_t here = found[*node] += (*node)->holds;
        if ((*node)->parent != nullptr) found[(*node)->parent] += here - 1;  // its hold there is one already
    }
    return found;
}

}  // namespace

std::vector<Shown> outline(const Tree& tree, int64_t limit) {
    using Waiting = std::tuple<int64_t, int64_t, Shown>;  // hits, ticks of the last use
    const auto less_used = [](const Waiting& one, const Waiting& other) {
        return std::tie(std::get<0>(one), std::get<1>(one)) < std::tie(std::get<0>(other), std::get<1>(other));
    };
    std::priority_queue<Waiting, std::vector<Waiting>, decltype(less_used)> waiting(less_used);
    const auto offer = [&](const Node& parent, int64_t place, int64_t length) {
        parent.children.each([&](const Node& child) {
            waiting.push({child.hits, child.used, {&child, place, length + child.run.length(), 0}});
        });
    };
    Leases pins = leases(tree);
    for (const auto& [name, root] : tree.roots()) offer(*root, -1, 0);
    std::vector<Shown> found;
    while (static_cast<int64_t>(found.size()) < limit && !waiting.empty()) {
        Shown one = std::get<2>(waiting.top());
        waiting.pop();
        one.pins = pins[one.node];
        found.push_back(one);
        offer(*one.node, static_cast<int64_t>(found.size()) - 1, one.length);  // none is used more than its parent
    }
    return found;
}

}  // namespace radix
