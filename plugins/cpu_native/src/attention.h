// Paged attention with online softmax (Milakov and Gimelshein 2018; tiled as in FlashAttention, Dao 2022).
//
// A work item is a block of query tokens times the query heads of one KV head, against all stored tokens of
// a piece, chunk by chunk. How a chunk's products are computed is up to few.h, wide.h and pairs.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "few.h"
#include "pairs.h"
#include "wide.h"

namespace {

// Scores to weights relative to the largest score so far; returns by how much earlier sums shrink.
// The query sees stored tokens [low, high) of the chunk. `put(i, weights)` takes 16 at a time.
template <class Put>
INLINE float soften(const Group& group, int query, int low, int high, Scratch& s, Put put) {
    float* scores = s.scores + query * CHUNK;
    if (low >= high) {
        for (int i = 0; i < CHUNK; i += LANES) put(i, V{});
        return 1;
    }
    V top = splat(-INFINITY);
    for (int i = 0; i < CHUNK; i += LANES) {
        V x = load(scores + i) * group.scale;
        if (group.soft_cap > 0) {  // cap * tanh(x / cap)
            const V e = exponential(x * (2 / group.soft_cap));
            x = group.soft_cap - 2 * group.soft_cap / (e + 1.f);
        }
        if (low > i || high < i + LANES) {
            const V at = lanes() + float(i);
            x = (at >= float(low)) & (at < float(high)) ? x : splat(-INFINITY);
        }
        store(scores + i, x);
        top = larger(x, top);
    }
    const float before = s.top[query], now = std::max(before, largest(top));
    V total{};
    for (int i = 0; i < CHUNK; i += LANES) {
        const V weight = decay(load(scores + i) - now);
        put(i, weight);
        total += weight;
    }
    const float shrink = before == now ? 1.f : before == -INFINITY ? 0.f : std::exp(before - now);
    s.total[query] = s.total[query] * shrink + sum(total);
    s.top[query] = now;
    return shrink;
}

INLINE void scale_row(float* row, int size, float factor) {
    if (factor != 1)
        for (int d = 0; d < size; d += LANES) store(row + d, load(row + d) * factor);
}

// A work item's queries: `tokens` of them from `token` on, each with `ratio` heads from `q_head` on.
struct Block {
    int token, tokens, q_head, ratio, queries;
    int oldest;  // position of the first token; of no meaning unless masked
    bool masked;
};

// Stored tokens [low, high) of the chunk from `begin` on that a query sees.
INLINE void visible(const Group& group, const Block& block, int query, int begin, int n, int& low, int& high) {
    low = 0, high = n;
    if (!block.masked) return;
    const int position = block.oldest + query / block.ratio;
    high = std::min(high, position + 1 - begin);
    if (group.window) low = std::max(low, position + 1 - group.window - begin);
}

template <class T>
INLINE void float_chunk(const Group& group, const Block& block, const Chunk<T>& at, int begin, Scratch& s) {
    const int size = group.head_dim;
    const bool few = block.queries <= FEW;
    if (few) {
        score_few(at, block.queries, size, s);
    } else {
        widen(at, size, s);
        products<CHUNK / LANES, false>(block.queries, s.q, size, s.keys, CHUNK, size, s.scores, CHUNK);
    }
    for (int i = 0; i < block.queries; i++) {
        int low, high;
        visible(group, block, i, begin, at.n, low, high);
        float* scores = s.scores + i * CHUNK;
        scale_row(s.out + i * size, size, soften(group, i, low, high, s, [=](int j, V weight) { store(scores + j, weight); }));
    }
    if (few) return add_values_few(at, block.queries, size, s);
    int d = 0;
    for (; d + 4 * LANES <= size; d += 4 * LANES)
        products<4, true>(block.queries, s.scores, CHUNK, s.values + d, size, CHUNK, s.out + d, size);
    for (; d < size; d += LANES) products<1, true>(block.queries, s.scores, CHUNK, s.values + d, size, CHUNK, s.out + d, size);
}

#ifdef __AVX512BF16__
INLINE void pair_chunk(const Group& group, const Block& block, const Chunk<bf16>& at, int begin, Scratch& s) {
    const int size = group.head_dim;
    float shrink[MAX_QUERIES];
    pack_keys(at, size, s);
    multiply_pairs(block.queries, s.q_pairs, padded(size), s.keys, padded(size), CHUNK, s.scores, CHUNK);
    pack_values(at, size, s);
    for (int i = 0; i < block.queries; i++) {
        int low, high;
        visible(group, block, i, begin, at.n, low, high);
        bf16* weights = s.weights + i * CHUNK;
        shrink[i] = soften(group, i, low, high, s, [=](int j, V weight) { store(weights + j, weight); });
    }
    multiply_pairs(block.queries, s.weights, CHUNK, s.values, CHUNK, size, s.parts, size);
    for (int i = 0; i < block.queries; i++)
        for (int d = i * size; d < (i + 1) * size; d += LANES) store(s.out + d, load(s.out + d) * shrink[i] + load(s.parts + d));
}
#endif

template <class T>
INLINE void chunk(const Group& group, const Block& block, const Chunk<T>& at, int begin, Scratch& s) {
#ifdef __AVX512BF16__
    if constexpr (std::is_same_v<T, bf16>)
        if (block.queries > FEW) return pair_chunk(group, block, at, begin, s);
#endif
    float_chunk(group, block, at, begin, s);
}

template <class T>
INLINE void load_queries(const Block& block, const T* q, int64_t q_token, int size, Scratch& s) {
    for (int i = 0; i < block.queries; i++) {
        const T* from = q + (block.token + i / block.ratio) * q_token + int64_t(block.q_head + i % block.ratio) * size;
#ifdef __AVX512BF16__
        if constexpr (std::is_same_v<T, bf16>) {
            bf16* to = s.q_pairs + i * padded(size);
            std::memcpy(to, from, size * sizeof(bf16));
            std::memset((void*)(to + size), 0, (padded(size) - size) * sizeof(bf16));
        } else
#endif
            for (int d = 0; d < size; d += LANES) store(s.q + i * size + d, load(from + d));
        for (int d = 0; d < size; d += LANES) store(s.out + i * size + d, V{});
        s.top[i] = -INFINITY;
        s.total[i] = 0;
    }
}

template <class T>
void finish(int size, float top, float total, const float* sums, const float* sink, T* out, float* lse) {
    float shrink = 1;
    if (sink) {
        const float now = std::max(top, *sink);
        shrink = std::exp(top - now);
        total = total * shrink + std::exp(*sink - now);
        top = now;
    }
    const float factor = shrink / total;
    for (int d = 0; d < size; d += LANES) store(out + d, load(sums + d) * factor);
    if (lse) *lse = top + std::log(total);
}

template <class T>
void attend_item(const Group& group, const Step& step, const Layer& layer, const Piece& piece, int item, const T* q,
                 int64_t q_token, T* out, float* lse, Scratch& s) {
    const int size = group.head_dim, head = item % group.kv_heads, ratio = group.q_heads / group.kv_heads;
    const int first = item / group.kv_heads * group.block, tokens = std::min(group.block, piece.n - first);
    const Block block{piece.token + first, tokens, head * ratio, ratio, tokens * ratio, piece.position + first, piece.position != SEES_ALL};
    load_queries(block, q, q_token, size, s);
    int begin = piece.begin, end = piece.end;
    if (block.masked) {
        end = std::min(end, block.oldest + tokens);
        if (group.window) begin = std::max(begin, block.oldest - group.window + 1);
    }
    const int32_t* pages = step.page_table + piece.page_row * step.page_table_stride;
    Chunk<T> chunks[2];  // while one is computed, the next is on its way
    locate(group, step, layer, pages, head, begin, end, chunks[0]);
    for (int i = 0; begin < end; begin += CHUNK, i ^= 1) {
        locate(group, step, layer, pages, head, begin + CHUNK, end, chunks[i ^ 1]);
        chunk(group, block, chunks[i], begin, s);
    }
    for (int i = 0; i < block.queries; i++) {
        const int token = i / ratio, q_head = block.q_head + i % ratio;
        if (piece.partial >= 0) {
            float* to = step.partials + (int64_t(piece.partial + first + token) * group.q_heads + q_head) * (size + 2);
            for (int d = 0; d < size; d += LANES) store(to + d, load(s.out + i * size + d));
            to[size] = s.top[i];
            to[size + 1] = s.total[i];
            continue;
        }
        const int64_t at = int64_t(block.token + token) * group.q_heads + q_head;
        finish(size, s.top[i], s.total[i], s.out + i * size, layer.sinks ? layer.sinks + q_head : nullptr, out + at * size, lse ? lse + at : nullptr);
    }
}

template <class T>
void merge(const Group& group, const Step& step, const Layer& layer, const Merge& one, int head, T* out, float* lse) {
    const int size = group.head_dim;
    const int64_t row = int64_t(group.q_heads) * (size + 2);
    const float* partials = step.partials + head * (size + 2);
    float top = -INFINITY, total = 0;
    for (int i = one.first; i < one.last; i++) top = std::max(top, partials[step.ids[i] * row + size]);
    alignas(64) float sums[MAX_DIM] = {};
    for (int i = one.first; i < one.last; i++) {
        const float* part = partials + step.ids[i] * row;
        const float weight = part[size] == -INFINITY ? 0.f : std::exp(part[size] - top);
        total += part[size + 1] * weight;
        for (int d = 0; d < size; d += LANES) store(sums + d, load(sums + d) + load(part + d) * weight);
    }
    const int64_t at = int64_t(one.token) * group.q_heads + head;
    finish(size, top, total, sums, layer.sinks ? layer.sinks + head : nullptr, out + at * size, lse ? lse + at : nullptr);
}

template <class T>
void attend_typed(const Group& group, const Step& step, const Layer& layer, const T* q, int64_t q_token, T* out, float* lse, int rows) {
    const int first_piece = rows == REST ? step.n_pieces[1] : 0, last_piece = step.n_pieces[rows == LEADING];
    const int first_item = rows == REST ? step.n_items[1] : 0, last_item = step.n_items[rows == LEADING];
    const int first_merge = rows == REST ? step.n_merges[1] : 0, last_merge = step.n_merges[rows == LEADING];
    const int threads = std::max(1, std::min(group.threads, last_item - first_item));
#pragma omp parallel num_threads(threads)
    {
        static thread_local std::unique_ptr<Scratch> scratch(new Scratch);  // on first use: not every thread attends
#pragma omp for schedule(dynamic, 1)
        for (int item = first_item; item < last_item; item++) {
            const Piece* after = std::upper_bound(step.pieces + first_piece, step.pieces + last_piece, item,
                                                  [](int value, const Piece& piece) { return value < piece.items; });
            const Piece& piece = after[-1];
            attend_item(group, step, layer, piece, item - piece.items, q, q_token, out, lse, *scratch);
        }
        if (last_merge > first_merge) {
#pragma omp for schedule(static)
            for (int i = first_merge * group.q_heads; i < last_merge * group.q_heads; i++)
                merge(group, step, layer, step.merges[i / group.q_heads], i % group.q_heads, out, lse);
        }
    }
}

void attend(const Group* group, const Step* step, const Layer* layer, const void* q, int64_t q_token, void* out, float* lse, int32_t rows) {
    if (group->dtype == BFLOAT16)
        attend_typed(*group, *step, *layer, (const bf16*)q, q_token, (bf16*)out, lse, rows);
    else
        attend_typed(*group, *step, *layer, (const float*)q, q_token, (float*)out, lse, rows);
}

void store_entries(const Group* group, const Step* step, const Layer* layer, const void* k, const void* v, int64_t k_token, int64_t v_token) {
    const int64_t item = group->dtype == BFLOAT16 ? 2 : 4, bytes = int64_t(group->kv_heads) * group->head_dim * item;
    for (int i = 0; i < step->tokens; i++) {
        const int64_t page = step->slots[i] / step->page_tokens, inside = step->slots[i] % step->page_tokens * bytes;
        std::memcpy((char*)layer->k + page * layer->k_page * item + inside, (const char*)k + i * k_token * item, bytes);
        std::memcpy((char*)layer->v + page * layer->v_page * item + inside, (const char*)v + i * v_token * item, bytes);
    }
}

}  // namespace
