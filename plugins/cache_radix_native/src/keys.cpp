// Comparing, hashing and cutting runs of tokens.
#include "keys.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

namespace radix {

namespace {

constexpr int64_t BLOCK = 64;  // tokens compared at once

int64_t common_ids(const int32_t* one, const int32_t* other, int64_t length) {
    int64_t n = 0;
    while (n + BLOCK <= length && std::memcmp(one + n, other + n, BLOCK * sizeof(int32_t)) == 0) n += BLOCK;
    return std::mismatch(one + n, one + length, other + n).first - one;
}

uint64_t hash_bytes(const void* data, size_t size) {
    return std::hash<std::string_view>{}({static_cast<const char*>(data), size});
}

}  // namespace

View View::head(int64_t n) const {
    const auto at_end = [&](const Mark& mark) { return position(mark) >= n; };
    return {ids, n, first, std::find_if(first, last, at_end), base};
}

View View::tail(int64_t n) const {
    const auto inside = [&](const Mark& mark) { return position(mark) >= n; };
    return {ids + n, length - n, std::find_if(first, last, inside), last, base + n};
}

int64_t View::common(const View& other) const {
    const int64_t n = common_ids(ids, other.ids, std::min(length, other.length));
    const Mark* theirs = other.first;
    for (const Mark* mine = first; mine != last && theirs != other.last; ++mine, ++theirs) {
        if (position(*mine) >= n) break;
        if (mine->identity != theirs->identity) return position(*mine);
    }
    return n;
}

uint64_t View::hash() const {
    uint64_t hash = hash_bytes(ids, length * sizeof(int32_t));
    for (const Mark* mark = first; mark != last; ++mark) {
        hash = hash * 0x9e3779b97f4a7c15 + hash_bytes(mark->identity.data(), mark->identity.size());
    }
    return hash;
}

Run::Run(const View& view)
    : ids_(std::make_shared<std::vector<int32_t>>(view.ids, view.ids + view.length)),
      first_(ids_->data()),
      length_(view.length) {
    for (const Mark* mark = view.first; mark != view.last; ++mark) {
        marks_.push_back({view.position(*mark), mark->identity});
    }
}

Run Run::cut(int64_t n) {
    Run rest;
    rest.ids_ = ids_;
    rest.first_ = first_ + n;
    rest.length_ = length_ - n;
    length_ = n;
    const auto is_after = [&](const Mark& mark) { return mark.at >= n; };
    const auto after = std::find_if(marks_.begin(), marks_.end(), is_after);
    for (auto mark = after; mark != marks_.end(); ++mark) rest.marks_.push_back({mark->at - n, mark->identity});
    marks_.erase(after, marks_.end());
    return rest;
}

void Run::fit() {
    if (4 * length_ >= static_cast<int64_t>(ids_->size())) return;
    ids_ = std::make_shared<std::vector<int32_t>>(first_, first_ + length_);
    first_ = ids_->data();
}

void Run::put_span(int64_t start, int64_t n, std::string identity) {
    const int64_t stop = std::min(start + n, length_);
    for (int64_t at = start; at < stop; ++at) first_[at] = static_cast<int32_t>(start - at - 1);
    marks_.push_back({start, std::move(identity)});
}

Key::Key(const int32_t* ids, int64_t length, const char* about) : ids_(ids), length_(length) {
    if (about != nullptr) read(about);
}

void Key::read(const char* about) {
    int64_t numbers[3];  // priority, size of the namespace, spans
    std::memcpy(numbers, about, sizeof numbers);
    priority_ = numbers[0];
    const char* span_at = about + sizeof numbers;
    const char* name = span_at + numbers[2] * 3 * sizeof(int64_t);
    name_.assign(name, numbers[1]);
    has_spans_ = numbers[2] > 0;
    if (!has_spans_) return;
    run_ = Run(View{ids_, length_, nullptr, nullptr});
    const char* digest = name + numbers[1];
    for (int64_t i = 0; i < numbers[2]; ++i, span_at += 3 * sizeof(int64_t)) {
        int64_t span[3];  // start, stop, size of the digest
        std::memcpy(span, span_at, sizeof span);
        std::string identity(digest, span[2]);
        digest += span[2];
        const auto size = static_cast<uint32_t>(span[1] - span[0]);
        identity.append(reinterpret_cast<const char*>(&size), sizeof size);
        run_.put_span(span[0], span[1] - span[0], std::move(identity));
    }
}

}  // namespace radix
