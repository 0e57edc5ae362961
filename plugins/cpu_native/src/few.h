// Few query vectors: K and V are read once, as they stand. Memory is the limit, so the sums only have to keep up.
#pragma once

#include <type_traits>

#include "chunk.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

// Scores of up to 16 keys from `i` on, for N queries; W vectors of queries and keys, 0 for any number.
template <int N, int W, class T>
INLINE void score(const Chunk<T>& at, int i, int q, int size, Scratch& s) {
    const int n = std::min(LANES, at.n - i), vectors = W ? W : size / LANES;
    V rows[N][LANES];
    for (int j = 0; j < LANES; j++) {
        V sums[N]{};
        if (j < n)
            for (int w = 0; w < vectors; w++) {
                const V key = load(at.k[i + j] + w * LANES);
                for (int m = 0; m < N; m++) sums[m] += key * load(s.q + (q + m) * size + w * LANES);
            }
        for (int m = 0; m < N; m++) rows[m][j] = sums[m];
    }
    for (int m = 0; m < N; m++) store(s.scores + (q + m) * CHUNK + i, sums_of_rows(rows[m]));
}

#ifdef __AVX512BF16__
// The same in pairs: a vector is 32 dims, the last one perhaps half of that.
template <int N, int W>
INLINE void score(const Chunk<bf16>& at, int i, int q, int size, Scratch& s) {
    const int n = std::min(LANES, at.n - i), dims = padded(size), vectors = W ? W : dims / 32;
    const __mmask32 last = dims == size ? 0xffffffff : 0xffff;
    V rows[N][LANES];
    for (int j = 0; j < LANES; j++) {
        __m512 sums[N];
        for (int m = 0; m < N; m++) sums[m] = _mm512_setzero_ps();
        if (j < n)
            for (int w = 0; w < vectors; w++) {
                const bf16* from = at.k[i + j] + w * 32;
                const __m512i key = W ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(w + 1 < vectors ? 0xffffffff : last, from);
                for (int m = 0; m < N; m++)
                    sums[m] = _mm512_dpbf16_ps(sums[m], (__m512bh)key, (__m512bh)_mm512_load_si512(s.q_pairs + (q + m) * dims + w * 32));
            }
        for (int m = 0; m < N; m++) rows[m][j] = (V)sums[m];
    }
    for (int m = 0; m < N; m++) store(s.scores + (q + m) * CHUNK + i, sums_of_rows(rows[m]));
}
#endif

template <int W, class T>
void score_few(const Chunk<T>& at, int queries, int size, Scratch& s) {
    for (int i = 0; i < at.n; i += LANES) {
        int q = 0;
        for (; q + 3 <= queries; q += 3) score<3, W>(at, i, q, size, s);
        for (; q < queries; q++) score<1, W>(at, i, q, size, s);
    }
}

template <class T>
INLINE void score_few(const Chunk<T>& at, int queries, int size, Scratch& s) {
#ifdef __AVX512BF16__
    constexpr int DIMS = std::is_same_v<T, bf16> ? 32 : LANES;
#else
    constexpr int DIMS = LANES;
#endif
    if (size == 64) return score_few<64 / DIMS>(at, queries, size, s);
    if (size == 128) return score_few<128 / DIMS>(at, queries, size, s);
    score_few<0>(at, queries, size, s);
}

// N query vectors, W vectors of the head: sums in registers while the chunk's values pass once.
template <class T, int N, int W>
INLINE void add_values(const Chunk<T>& at, int q, int d, int size, Scratch& s) {
    V out[N][W];
    for (int n = 0; n < N; n++)
        for (int w = 0; w < W; w++) out[n][w] = load(s.out + (q + n) * size + d + w * LANES);
    for (int i = 0; i < at.n; i++)
        for (int w = 0; w < W; w++) {
            const V value = load(at.v[i] + d + w * LANES);
            for (int n = 0; n < N; n++) out[n][w] += value * s.scores[(q + n) * CHUNK + i];
        }
    for (int n = 0; n < N; n++)
        for (int w = 0; w < W; w++) store(s.out + (q + n) * size + d + w * LANES, out[n][w]);
}

template <class T, int W>
INLINE void add_values(const Chunk<T>& at, int queries, int d, int size, Scratch& s) {
    int q = 0;
    for (; q + 3 <= queries; q += 3) add_values<T, 3, W>(at, q, d, size, s);
    for (; q < queries; q++) add_values<T, 1, W>(at, q, d, size, s);
}

template <class T>
void add_values_few(const Chunk<T>& at, int queries, int size, Scratch& s) {
    int d = 0;
    for (; d + 4 * LANES <= size; d += 4 * LANES) add_values<T, 4>(at, queries, d, size, s);
    for (; d < size; d += LANES) add_values<T, 1>(at, queries, d, size, s);
}

}  // namespace
