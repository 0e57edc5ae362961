// What the tree keeps, for people to look at: the nodes used most, and who holds them. Changes nothing.
#pragma once

#include <vector>

#include "tree.h"

namespace radix {

// A node of the outline; what it extends is an earlier one, -1 for none.
struct Shown {
    const Node* node;
    int64_t parent;
    int64_t length;  // tokens, the parent's included
    int64_t pins;    // leases that end here or below
};

// Up to `limit` nodes, those matched most often and then those used last; parents first. Looks at every child of the
// nodes that it lists and of those that are held, and at no others.
std::vector<Shown> outline(const Tree& tree, int64_t limit);

}  // namespace radix
