// Stored tokens that are looked at together, and what a thread works in.
#pragma once

#include <algorithm>

#include "abi.h"
#include "vec.h"

namespace {

constexpr int CHUNK = 64;        // stored tokens that are scored together
constexpr int MAX_QUERIES = 96;  // query vectors of a work item
constexpr int FEW = 5;           // up to so many, K and V are used as they stand
constexpr int MAX_DIM = 256;

// What a thread works in. Only the front of each array is touched: for 64-wide heads and 96 queries 120 KiB.
struct Scratch {
    alignas(64) float q[MAX_QUERIES * MAX_DIM];       // widened queries, or in place of them:
    alignas(64) bf16 q_pairs[MAX_QUERIES * MAX_DIM];  // queries as they are, dims padded to a multiple of 32
    alignas(64) float out[MAX_QUERIES * MAX_DIM];
    alignas(64) float scores[MAX_QUERIES * CHUNK];
    alignas(64) bf16 weights[MAX_QUERIES * CHUNK];
    alignas(64) float keys[MAX_DIM * CHUNK];    // [dim][token], or for pairs [token / 16][dim / 2][16][2]
    alignas(64) float values[CHUNK * MAX_DIM];  // [token][dim], or for pairs [dim / 16][token / 2][16][2]
    alignas(64) float parts[MAX_QUERIES * MAX_DIM];
    float top[MAX_QUERIES], total[MAX_QUERIES];
};

constexpr int padded(int size) { return (size + 31) / 32 * 32; }

template <class T>
struct Chunk {
    const T* k[CHUNK];
    const T* v[CHUNK];
    int n;
};

// Where the chunk that begins at `begin` stands, and a hint to the cache: pages are anywhere in memory.
template <class T>
void locate(const Group& group, const Step& step, const Layer& layer, const int32_t* pages, int head, int begin, int end, Chunk<T>& at) {
    const int64_t token = int64_t(group.kv_heads) * group.head_dim;
    const int bytes = group.head_dim * int(sizeof(T));
    at.n = std::clamp(end - begin, 0, CHUNK);
    int page = begin / step.page_tokens, inside = begin % step.page_tokens;
    for (int i = 0; i < at.n; page++, inside = 0) {
        const int64_t id = pages[page];
        const T* k = (const T*)layer.k + id * layer.k_page + inside * token + int64_t(head) * group.head_dim;
        const T* v = (const T*)layer.v + id * layer.v_page + inside * token + int64_t(head) * group.head_dim;
        const int here = std::min(at.n - i, step.page_tokens - inside);
        for (int j = 0; j < here; j++, i++, k += token, v += token) {
            at.k[i] = k;
            at.v[i] = v;
            for (int line = 0; line < bytes; line += 64) {
                __builtin_prefetch((const char*)k + line, 0, 2);
                __builtin_prefetch((const char*)v + line, 0, 2);
            }
        }
    }
}

}  // namespace
