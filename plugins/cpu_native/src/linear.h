// out = x weight^T + bias in bfloat16, summed in float32, for processors with bfloat16 instructions.
//
// The weight is packed as [out / 16][in / 2][16][2]: a line of 64 bytes holds two neighbouring inputs of 16
// outputs. That is the operand of vdpbf16ps, and 16 lines of it are the B tile of AMX, so that one form
// serves one row (memory is the limit) and a thousand (arithmetic is). Where few bits say the same (steps.h),
// they serve few rows.
#pragma once

#include "steps.h"

#ifdef __AVX512BF16__

namespace {

constexpr int TALL = 12;  // rows that vdpbf16ps takes at once: 12 x 2 accumulators fit the registers

INLINE __m512 pair(const bf16* x) {  // inputs i and i + 1 of one row, to all lanes
    int32_t both;
    std::memcpy(&both, x, sizeof both);
    return _mm512_castsi512_ps(_mm512_set1_epi32(both));
}

INLINE void write(bf16* to, __m512 value, const bf16* bias, int columns) {
    V v = (V)value;
    alignas(32) bf16 line[COLUMNS];
    if (bias) {
        bf16 some[COLUMNS] = {};
        std::memcpy(some, bias, columns * sizeof(bf16));
        v += load(some);
    }
    if (columns == COLUMNS) return store(to, v);
    store(line, v);
    std::memcpy(to, line, columns * sizeof(bf16));
}

// N rows against P panels of 16 outputs each.
template <int N, int P>
INLINE void dots(const bf16* x, int64_t x_row, const bf16* packed, int64_t in, const bf16* bias, bf16* out, int64_t out_size, int columns) {
    __m512 sums[N][P];
    for (int n = 0; n < N; n++)
        for (int p = 0; p < P; p++) sums[n][p] = _mm512_setzero_ps();
    for (int64_t i = 0; i < in; i += 2) {
        __m512bh line[P];
        for (int p = 0; p < P; p++) {
            const bf16* at = packed + p * in * COLUMNS + i * COLUMNS;
            line[p] = (__m512bh)_mm512_loadu_si512(at);
            if (N <= 4) _mm_prefetch((const char*)(at + 32 * LINE), _MM_HINT_T0);
        }
        for (int n = 0; n < N; n++) {
            const __m512bh both = (__m512bh)pair(x + n * x_row + i);
            for (int p = 0; p < P; p++) sums[n][p] = _mm512_dpbf16_ps(sums[n][p], line[p], both);
        }
    }
    for (int n = 0; n < N; n++)
        for (int p = 0; p < P; p++)
            write(out + n * out_size + p * COLUMNS, sums[n][p], bias ? bias + p * COLUMNS : nullptr,
                  p == P - 1 ? columns : COLUMNS);
}

template <int P>
INLINE void panel_dots(const bf16* x, int64_t x_row, const bf16* packed, int64_t in, const bf16* bias, bf16* out, int64_t out_size, int64_t rows, int columns) {
    int64_t n = 0;
    for (; n + TALL <= rows; n += TALL) dots<TALL, P>(x + n * x_row, x_row, packed, in, bias, out + n * out_size, out_size, columns);
    for (; n + 4 <= rows; n += 4) dots<4, P>(x + n * x_row, x_row, packed, in, bias, out + n * out_size, out_size, columns);
    for (; n + 2 <= rows; n += 2) dots<2, P>(x + n * x_row, x_row, packed, in, bias, out + n * out_size, out_size, columns);
    if (n < rows) dots<1, P>(x + n * x_row, x_row, packed, in, bias, out + n * out_size, out_size, columns);
}

#ifdef __AMX_BF16__
constexpr int64_t AMX_ROWS = 7;  // from so many rows on tiles beat dot products
constexpr int64_t AHEAD = 64;    // inputs
constexpr int64_t BLOCK = 256;   // rows of x that stay in the second-level cache beside two panels

// Up to 32 rows against two panels: four accumulating tiles. `below`: there is a second tile of rows.
// `fetch`: the weight comes from memory this time, and tile loads do not run ahead of themselves.
template <bool below, bool fetch>
INLINE void tiles(const bf16* x, int64_t x_row, const bf16* left, const bf16* right, int64_t in, float* sums) {
    _tile_zero(0);
    _tile_zero(1);
    if (below) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < in; i += 32) {
        if (fetch)
            for (int line = 0; line < TILE; line++) {
                _mm_prefetch((const char*)(left + (i + AHEAD) * COLUMNS + line * LINE), _MM_HINT_T0);
                _mm_prefetch((const char*)(right + (i + AHEAD) * COLUMNS + line * LINE), _MM_HINT_T0);
            }
        _tile_loadd(6, left + i * COLUMNS, 64);
        _tile_loadd(7, right + i * COLUMNS, 64);
        _tile_loadd(4, x + i, x_row * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (below) {
            _tile_loadd(5, x + TILE * x_row + i, x_row * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    if (below) {
        _tile_stored(2, sums + TILE * 32, 128);
        _tile_stored(3, sums + TILE * 32 + 16, 128);
    }
}

// Panels [first, last) for all rows.
INLINE void panel_tiles(const bf16* x, int64_t x_row, const bf16* packed, const bf16* bias, bf16* out, int64_t rows, int64_t in,
                        int64_t out_size, int64_t first, int64_t last) {
    alignas(64) float sums[2 * TILE * 32];
    for (int64_t block = 0; block < rows; block += BLOCK) {
        const int64_t end = std::min(rows, block + BLOCK);
        int was_a = 0, was_b = 0;
        for (int64_t p = first; p < last; p += 2) {
            const bf16* left = packed + p * in * COLUMNS;
            const bf16* right = p + 1 < last ? left + in * COLUMNS : left;
            for (int64_t row = block; row < end; row += 2 * TILE) {
                const int a = int(std::min<int64_t>(TILE, end - row)), b = int(std::clamp<int64_t>(end - row - TILE, 0, TILE));
                if (a != was_a || b != was_b) {
                    configure_tiles(a, b);
                    was_a = a, was_b = b;
                }
                const bf16* at = x + row * x_row;
                if (row > block) b ? tiles<true, false>(at, x_row, left, right, in, sums) : tiles<false, false>(at, x_row, left, right, in, sums);
                else b ? tiles<true, true>(at, x_row, left, right, in, sums) : tiles<false, true>(at, x_row, left, right, in, sums);
                for (int n = 0; n < a + b; n++)
                    for (int64_t side = 0; side < 2 && p + side < last; side++) {
                        const int64_t column = (p + side) * COLUMNS;
                        write(out + (row + n) * out_size + column, _mm512_load_ps(sums + n * 32 + side * 16),
                              bias ? bias + column : nullptr, int(std::min<int64_t>(COLUMNS, out_size - column)));
                    }
            }
        }
    }
    release_tiles();
}
#endif

void linear(const void* x_, int64_t x_row, const void* packed_, const void* steps_, const void* bias_, void* out_, int64_t rows,
            int64_t in, int64_t out_size, int32_t threads) {
    const bf16 *x = (const bf16*)x_, *packed = (const bf16*)packed_, *bias = (const bf16*)bias_;
    const Steps* steps = (const Steps*)steps_;
    bf16* out = (bf16*)out_;
    const int64_t panels = (out_size + COLUMNS - 1) / COLUMNS, pairs = (panels + 1) / 2;
#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num(), all = omp_get_num_threads();
        const int64_t first = pairs * me / all * 2, last = std::min(panels, pairs * (me + 1) / all * 2);
        if (steps && rows > 0 && rows <= MOST_ROWS) {
            V results[MOST_ROWS];
            for (int64_t p = first; p < last; p++) {
                const Steps* panel = steps + p * (in / INPUTS);
                rows == 1 ? few_rows<1, 16>(x, x_row, panel, in / INPUTS, results) : few_rows<2, 8>(x, x_row, panel, in / INPUTS, results);
                for (int64_t n = 0; n < rows; n++)
                    write(out + n * out_size + p * COLUMNS, (__m512)results[n], bias ? bias + p * COLUMNS : nullptr,
                          int(std::min<int64_t>(COLUMNS, out_size - p * COLUMNS)));
            }
        } else
#ifdef __AMX_BF16__
        if (rows >= AMX_ROWS) {
            panel_tiles(x, x_row, packed, bias, out, rows, in, out_size, first, last);
        } else
#endif
        {
            for (int64_t p = first; p < last; p += 2) {
                const int64_t column = p * COLUMNS;
                const bf16 *line = packed + p * in * COLUMNS, *add = bias ? bias + column : nullptr;
                if (p + 1 < last)
                    panel_dots<2>(x, x_row, line, in, add, out + column, out_size, rows, int(std::min<int64_t>(COLUMNS, out_size - column - COLUMNS)));
                else
                    panel_dots<1>(x, x_row, line, in, add, out + column, out_size, rows, int(std::min<int64_t>(COLUMNS, out_size - column)));
            }
        }
    }
}

}  // namespace

#endif
