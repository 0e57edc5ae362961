// Many query vectors without bfloat16 instructions: a chunk's K and V are widened to float32 once, K transposed,
// and both products run from registers.
#pragma once

#include "chunk.h"

namespace {

// Dims [offset, offset + 16) of 16 keys (`n` of them, the rest zero) to [dim][token] at `to`.
template <class T>
INLINE void transpose_keys(const T* const* from, int n, int offset, float* to) {
    V rows[LANES];
    for (int i = 0; i < LANES; i++) rows[i] = i < n ? load(from[i] + offset) : V{};
    transpose(rows);
    for (int d = 0; d < LANES; d++) store(to + d * CHUNK, rows[d]);
}

template <class T>
void widen(const Chunk<T>& at, int size, Scratch& s) {
    for (int i = 0; i < CHUNK; i += LANES)
        for (int d = 0; d < size; d += LANES) transpose_keys(at.k + i, std::clamp(at.n - i, 0, LANES), d, s.keys + d * CHUNK + i);
    for (int i = 0; i < CHUNK; i++)
        for (int d = 0; d < size; d += LANES) store(s.values + i * size + d, i < at.n ? load(at.v[i] + d) : V{});
}

// to[n][W vectors] (+)= a[n][steps] b[steps][stride], n rows of queries at once.
template <int N, int W, bool ADD>
INLINE void product(const float* a, int a_row, const float* b, int b_row, int steps, float* to, int to_row) {
    V sums[N][W];
    for (int q = 0; q < N; q++)
        for (int w = 0; w < W; w++) sums[q][w] = ADD ? load(to + q * to_row + w * LANES) : V{};
    for (int i = 0; i < steps; i++) {
        V row[W];
        for (int w = 0; w < W; w++) row[w] = load(b + i * b_row + w * LANES);
        for (int q = 0; q < N; q++) {
            const V left = splat(a[q * a_row + i]);
            for (int w = 0; w < W; w++) sums[q][w] += left * row[w];
        }
    }
    for (int q = 0; q < N; q++)
        for (int w = 0; w < W; w++) store(to + q * to_row + w * LANES, sums[q][w]);
}

template <int W, bool ADD>
void products(int queries, const float* a, int a_row, const float* b, int b_row, int steps, float* to, int to_row) {
    int q = 0;
    for (; q + 6 <= queries; q += 6) product<6, W, ADD>(a + q * a_row, a_row, b, b_row, steps, to + q * to_row, to_row);
    for (; q + 2 <= queries; q += 2) product<2, W, ADD>(a + q * a_row, a_row, b, b_row, steps, to + q * to_row, to_row);
    if (q < queries) product<1, W, ADD>(a + q * a_row, a_row, b, b_row, steps, to + q * to_row, to_row);
}

}  // namespace
