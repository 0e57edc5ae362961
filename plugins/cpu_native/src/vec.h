// Sixteen floats at a time, and conversions to and from storage types. Knows nothing of attention or layers.
//
// GCC's vector extensions, so that one source serves every instruction set: a V is one AVX-512 register,
// two AVX2 registers or four of SSE, as the file is compiled (see hatch_build.py and isa.h).
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef float V __attribute__((vector_size(64)));
typedef int32_t VI __attribute__((vector_size(64)));
typedef uint32_t VU __attribute__((vector_size(64)));
typedef uint16_t VH __attribute__((vector_size(32)));

constexpr int LANES = 16;

struct bf16 {
    uint16_t bits;
};

#define INLINE inline __attribute__((always_inline))

// A function of one instruction set must not be merged with its twin of another by the linker: anonymous.
namespace {

INLINE V splat(float x) { return V{} + x; }

INLINE V load(const float* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

#ifdef __AVX512F__  // GCC's own conversion goes through halves
INLINE V load(const bf16* p) { return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16); }
#else
INLINE V load(const bf16* p) {
    VH half;
    std::memcpy(&half, p, sizeof half);
    return (V)(__builtin_convertvector(half, VU) << 16);
}
#endif

INLINE void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }

// To nearest, ties to even; a NaN stays one.
#ifdef __AVX512BF16__
INLINE void store(bf16* p, V v) {
    const __m256bh half = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(p, &half, sizeof half);
}
#else
INLINE void store(bf16* p, V v) {
    VU bits = (VU)v;
    VU rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    rounded = v == v ? rounded : VU{} + 0x7fc0u;
    VH half = __builtin_convertvector(rounded, VH);
    std::memcpy(p, &half, sizeof half);
}
#endif

INLINE float to_float(float x) { return x; }

INLINE float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}

INLINE void put(float* p, float x) { *p = x; }

INLINE void put(bf16* p, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    p->bits = x == x ? uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) : 0x7fc0;
}

// To the storage type and back, where an operator's definition rounds in between.
INLINE V round_to(V v, const float*) { return v; }

INLINE V round_to(V v, const bf16*) {
    bf16 kept[LANES];
    store(kept, v);
    return load(kept);
}

INLINE float sum(V v) {
    typedef float H __attribute__((vector_size(32)));
    typedef float Q __attribute__((vector_size(16)));
    H h[2];
    std::memcpy(h, &v, sizeof v);
    H a = h[0] + h[1];
    Q q[2];
    std::memcpy(q, &a, sizeof a);
    Q b = q[0] + q[1];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

INLINE V larger(V a, V b) { return a < b ? b : a; }  // a NaN in a stays

INLINE float largest(V v) {
    v = larger(__builtin_shuffle(v, VI{8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15}), v);
    v = larger(__builtin_shuffle(v, VI{4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7}), v);
    v = larger(__builtin_shuffle(v, VI{2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3}), v);
    return v[0] < v[1] ? v[1] : v[0];
}

// x = n ln 2 + r with |r| <= ln 2 / 2: returns e^r by its Taylor polynomial of degree 6, and n. ln 2 is
// subtracted in two parts (Cody and Waite).
INLINE V reduced_exponential(V x, VI& n) {
    V whole = x * 1.44269504f + 12582912.f;  // 1.5 * 2^23: the fraction is rounded off
    whole -= 12582912.f;
    n = __builtin_convertvector(whole, VI);
    V r = x - whole * 0.693359375f;
    r -= whole * -2.12194440e-4f;
    V p = splat(1.f / 720);
    p = p * r + 1.f / 120;
    p = p * r + 1.f / 24;
    p = p * r + 1.f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.f;
    return p * r + 1.f;
}

// e^x for x <= 0 with a relative error below 2e-7; 0 below -87.
#ifdef __AVX512F__
// 2^t = 2^n 2^r with r = t - n in [-1/2, 1/2]; vscalefps multiplies by 2^n and underflows to 0.
INLINE V decay(V x) {
    const __m512 t = _mm512_max_ps(_mm512_set1_ps(-126.f), (__m512)(x * 1.44269504f));  // a NaN in x stays
    const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const V r = (V)t - (V)n;
    V p = splat(1.54035304e-4f);  // (ln 2)^k / k!
    p = p * r + 1.33335581e-3f;
    p = p * r + 9.61812911e-3f;
    p = p * r + 5.55041087e-2f;
    p = p * r + 0.240226507f;
    p = p * r + 0.693147181f;
    p = p * r + 1.f;
    const __mmask16 kept = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.f), _CMP_NEQ_UQ);
    return (V)_mm512_maskz_scalef_ps(kept, (__m512)p, n);
}
#else
INLINE V decay(V x) {
    const V low = splat(-87.f);
    VI n;
    const V p = reduced_exponential(x < low ? low : x, n);
    return x < low ? V{} : p * (V)((n + 127) << 23);
}
#endif

// e^x for any x: the exponent is added in two steps, since 2^128 is no float.
INLINE V exponential(V x) {
    const V low = splat(-87.f), high = splat(88.7f);
    const V y = x < low ? low : x;
    VI n;
    const V p = reduced_exponential(y > high ? high : y, n);
    const VI half = n >> 1;
    return x < low ? V{} : p * (V)((half + 127) << 23) * (V)((n - half + 127) << 23);
}

template <int S>
INLINE VI low_lanes() {
    VI from;
    for (int i = 0; i < LANES; i++) from[i] = i & S ? LANES + i - S : i;
    return from;
}

template <int S>
INLINE VI high_lanes() {
    VI from;
    for (int i = 0; i < LANES; i++) from[i] = i & S ? LANES + i : i + S;
    return from;
}

// Adds neighbours at distance S within each vector and packs two vectors into one.
template <int S>
INLINE void fold(V (&rows)[LANES]) {
    const VI low = low_lanes<S>(), high = high_lanes<S>();
    for (int i = 0; i < LANES / (2 * S); i++)
        rows[i] = __builtin_shuffle(rows[2 * i], rows[2 * i + 1], low) + __builtin_shuffle(rows[2 * i], rows[2 * i + 1], high);
}

// Exchanges blocks of `S` lanes across the diagonal of 16 x 16 floats (Eklundh 1972).
template <int S>
INLINE void exchange(V (&rows)[LANES]) {
    const VI low = low_lanes<S>(), high = high_lanes<S>();
    for (int i = 0; i < LANES; i++) {
        if (i & S) continue;
        const V a = rows[i], b = rows[i + S];
        rows[i] = __builtin_shuffle(a, b, low);
        rows[i + S] = __builtin_shuffle(a, b, high);
    }
}

INLINE void transpose(V (&rows)[LANES]) {
    exchange<1>(rows);
    exchange<2>(rows);
    exchange<4>(rows);
    exchange<8>(rows);
}

// Lanes [l] of the result: the sum of rows[l]. Halves the number of vectors four times.
INLINE V sums_of_rows(V (&rows)[LANES]) {
    fold<1>(rows);
    fold<2>(rows);
    fold<4>(rows);
    fold<8>(rows);
    return rows[0];
}

INLINE V lanes() { return V{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

}  // namespace
