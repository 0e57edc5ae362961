// Runs of token identities that compare exactly. Knows no tree.
//
// A span (image, prompt embedding) replaces the ids of its positions by -1, -2, -3 ... (its own offsets, which no
// token id can be) plus one mark with its identity at its first position. So where ids agree spans begin at the
// same places, and two runs agree as far as their ids and their marks do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace radix {

// Where a span begins, and what it is: its digest and length.
struct Mark {
    int64_t at;
    std::string identity;
};

// A run that somebody else owns. Positions of its marks count from `base`. It may begin inside a span: what stands
// before it has the mark.
class View {
  public:
    View(const int32_t* ids, int64_t length, const Mark* first, const Mark* last, int64_t base = 0)
        : ids(ids), length(length), first(first), last(last), base(base) {}

    View head(int64_t n) const;
    View tail(int64_t n) const;
    // How many leading tokens both have.
    int64_t common(const View& other) const;
    // Equal for equal runs.
    uint64_t hash() const;
    int64_t position(const Mark& mark) const { return mark.at - base; }

    const int32_t* ids;
    int64_t length;
    const Mark* first;
    const Mark* last;
    int64_t base;
};

// A run that owns its tokens, alone or with the other parts of the run that it was cut from.
class Run {
  public:
    Run() = default;
    explicit Run(const View& view);

    int64_t length() const { return length_; }
    View view() const { return {first_, length_, marks_.data(), marks_.data() + marks_.size()}; }
    // Cut in two: this run keeps the first `n` tokens, the rest is returned. No token is copied or read.
    Run cut(int64_t n);
    bool shares_memory(const Run& other) const { return ids_ == other.ids_; }
    // Take a copy of its own tokens if they are less than a quarter of the memory that it keeps.
    void fit();
    // Make `n` positions from `start` those of a span, of which the run has perhaps not all.
    void put_span(int64_t start, int64_t n, std::string identity);

  private:
    std::shared_ptr<std::vector<int32_t>> ids_;
    int32_t* first_ = nullptr;  // its own tokens, in `ids_`
    int64_t length_ = 0;
    std::vector<Mark> marks_;  // positions count from `first_`
};

// The first `length` tokens of a caller's key. Without spans, no token is copied.
//
// `about` says what is rare; null says none of it. Else it has int64: the priority, the size of the namespace, the
// number n of spans, n times start, stop and size of the digest; then bytes: the namespace, the digests. Spans are
// sorted by start, do not overlap, and begin below `length`.
class Key {
  public:
    Key(const int32_t* ids, int64_t length, const char* about);

    View view() const { return has_spans_ ? run_.view() : View{ids_, length_, nullptr, nullptr}; }
    const std::string& name() const { return name_; }
    int64_t priority() const { return priority_; }

  private:
    void read(const char* about);

    const int32_t* ids_;
    int64_t length_;
    int64_t priority_ = 0;
    std::string name_;
    bool has_spans_ = false;
    Run run_;
};

// Lets go of memory once more than half of it is unused: elements taken off one by one cost O(1) each.
template <class T>
void cut_vector(std::vector<T>& values, int64_t n) {
    values.erase(values.begin() + n, values.end());
    if (values.capacity() > 2 * values.size()) values.shrink_to_fit();
}

}  // namespace radix
