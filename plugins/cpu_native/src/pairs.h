// Many query vectors with bfloat16 instructions: a chunk's K and V are packed to pairs once, and both products
// are sums of pairs, 32 in one AMX tile row or 2 in one lane of vdpbf16ps. The weights are rounded to bfloat16.
#pragma once

#include "chunk.h"

#ifdef __AVX512BF16__
#include <immintrin.h>

namespace {

constexpr int TILE = 16;  // rows of a tile, and columns

// K to [token / 16][dim / 2][16][2]: 16 tokens times 32 dims are 16 x 16 pairs, transposed.
inline void pack_keys(const Chunk<bf16>& at, int size, Scratch& s) {
    const int dims = padded(size);
    for (int i = 0; i < CHUNK; i += TILE)
        for (int d = 0; d < dims; d += 32) {
            const __mmask32 some = size - d >= 32 ? 0xffffffff : 0xffff;
            V rows[LANES];
            for (int j = 0; j < TILE; j++)
                rows[j] = i + j < at.n ? (V)_mm512_maskz_loadu_epi16(some, at.k[i + j] + d) : V{};
            transpose(rows);
            for (int j = 0; j < LANES; j++) store(s.keys + (i * dims + d * TILE) / 2 + j * LANES, rows[j]);
        }
}

// V to [dim / 16][token / 2][16][2]: two tokens side by side.
inline void pack_values(const Chunk<bf16>& at, int size, Scratch& s) {
    for (int d = 0; d < size; d += TILE)
        for (int i = 0; i < CHUNK; i += 2) {
            VU first{}, second{};
            if (i < at.n) first = (VU)load(at.v[i] + d) >> 16;
            if (i + 1 < at.n) second = (VU)load(at.v[i + 1] + d);
            store(s.values + (d * CHUNK + i * TILE) / 2, (V)(first | second));
        }
}

#ifdef __AMX_BF16__
struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tiles 0 to 3 sum, 4 and 5 are left operands of `upper` and `lower` rows, 6 and 7 right operands.
INLINE void configure_tiles(int upper, int lower) {
    TileConfig config;
    for (int i = 0; i < 8; i++) config.bytes[i] = 64;
    config.rows[0] = config.rows[1] = config.rows[4] = uint8_t(upper);
    config.rows[2] = config.rows[3] = config.rows[5] = uint8_t(lower ? lower : 1);
    config.rows[6] = config.rows[7] = TILE;
    _tile_loadconfig(&config);
}

// to [queries, columns] = left [queries, pairs] times right [columns / 16][pairs / 2][16][2]; `left_row` in elements.
inline void multiply_pairs(int queries, const bf16* left, int left_row, const float* right, int pairs, int columns, float* to, int to_row) {
    for (int q = 0; q < queries; q += 2 * TILE) {
        const int upper = std::min(TILE, queries - q), lower = std::clamp(queries - q - TILE, 0, TILE);
        configure_tiles(upper, lower);
        const bf16* a = left + q * left_row;
        float* out = to + q * to_row;
        for (int c = 0; c < columns; c += 2 * TILE) {
            const bool second = c + TILE < columns;
            const float* b = right + c * pairs / 2;
            const float* b2 = second ? b + TILE * pairs / 2 : b;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int i = 0; i < pairs; i += 32) {
                _tile_loadd(4, a + i, left_row * 2);
                _tile_loadd(6, b + i * TILE / 2, 64);
                _tile_loadd(7, b2 + i * TILE / 2, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                if (lower) {
                    _tile_loadd(5, a + TILE * left_row + i, left_row * 2);
                    _tile_dpbf16ps(2, 5, 6);
                    _tile_dpbf16ps(3, 5, 7);
                }
            }
            _tile_stored(0, out + c, to_row * 4);
            if (second) _tile_stored(1, out + c + TILE, to_row * 4);
            if (lower) _tile_stored(2, out + TILE * to_row + c, to_row * 4);
            if (lower && second) _tile_stored(3, out + TILE * to_row + c + TILE, to_row * 4);
        }
    }
}

INLINE void release_tiles() { _tile_release(); }
#else
template <int N>
INLINE void multiply_rows(const bf16* left, int left_row, const float* right, int pairs, int columns, float* to, int to_row) {
    for (int c = 0; c < columns; c += TILE) {
        const float* b = right + c * pairs / 2;
        __m512 sums[N];
        for (int n = 0; n < N; n++) sums[n] = _mm512_setzero_ps();
        for (int i = 0; i < pairs; i += 2) {
            const __m512bh line = (__m512bh)_mm512_load_si512(b + i * TILE / 2);
            for (int n = 0; n < N; n++) {
                int32_t both;
                std::memcpy(&both, left + n * left_row + i, sizeof both);
                sums[n] = _mm512_dpbf16_ps(sums[n], line, (__m512bh)_mm512_set1_epi32(both));
            }
        }
        for (int n = 0; n < N; n++) store(to + n * to_row + c, (V)sums[n]);
    }
}

// As with tiles.
inline void multiply_pairs(int queries, const bf16* left, int left_row, const float* right, int pairs, int columns, float* to, int to_row) {
    int q = 0;
    for (; q + 12 <= queries; q += 12) multiply_rows<12>(left + q * left_row, left_row, right, pairs, columns, to + q * to_row, to_row);
    for (; q + 3 <= queries; q += 3) multiply_rows<3>(left + q * left_row, left_row, right, pairs, columns, to + q * to_row, to_row);
    for (; q < queries; q++) multiply_rows<1>(left + q * left_row, left_row, right, pairs, columns, to + q * to_row, to_row);
}

INLINE void release_tiles() {}
#endif

}  // namespace
#endif
