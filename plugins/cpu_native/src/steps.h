// Weights that stand on 16 even steps, kept in 4 bits beside the 16 they have, for products with few rows.
//
// Many models come quantised in blocks of 32 inputs: value = low + step * n. Loaded they are bfloat16 like any
// other, but low and step can be found again. `keep_steps` looks for them, and refuses unless every weight
// comes back bit for bit; so it makes no difference but in time: a few rows are bound by memory, and this is
// 3/8 of it. Knows no file format. Many rows are bound by arithmetic: for them linear.h has the plain form.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "pairs.h"

#ifdef __AVX512BF16__

namespace {

constexpr int COLUMNS = 16;        // outputs of a panel
constexpr int LINE = 2 * COLUMNS;  // elements of a line of the plain form: two neighbouring inputs of 16 outputs
constexpr int INPUTS = 32;         // of a block
constexpr int MOST_ROWS = 2;       // that are few: with more, arithmetic is the limit again
constexpr int BLOCKS_AHEAD = 8;   // blocks to fetch before they are wanted

// 32 inputs of a panel's 16 outputs. Word i of `numbers[o / 4]` holds input i of four outputs, the first lowest.
struct Steps {
    float step[COLUMNS], low[COLUMNS];
    uint16_t numbers[COLUMNS / 4][INPUTS];
};

static_assert(sizeof(Steps) == 384, "provider.py allocates it");

// The bfloat16 inputs of outputs o and o + 1. Their 2 x 16 possible values fill one register, which is looked up.
INLINE void two_outputs(const Steps& at, int o, __m512i numbers, __m512bh& first, __m512bh& second) {
    const V a = lanes() * at.step[o] + at.low[o], b = lanes() * at.step[o + 1] + at.low[o + 1];
    const __m512i values = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a), number = _mm512_set1_epi16(15), upper = _mm512_set1_epi16(16);
    const int shift = 4 * (o % 4);
    first = (__m512bh)_mm512_permutexvar_epi16(_mm512_and_si512(_mm512_srli_epi16(numbers, shift), number), values);
    second = (__m512bh)_mm512_permutexvar_epi16(
        _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(numbers, shift + 4), number), upper), values);
}

// N rows against one panel of `blocks`, O outputs at a time: as many sums as the registers hold.
template <int N, int O>
INLINE void few_rows(const bf16* x, int64_t x_row, const Steps* panel, int64_t blocks, V (&results)[MOST_ROWS]) {
    V sums[N][COLUMNS];
    for (int first = 0; first < COLUMNS; first += O) {
        __m512 part[N][O];
        for (int n = 0; n < N; n++)
            for (int o = 0; o < O; o++) part[n][o] = _mm512_setzero_ps();
        for (int64_t b = 0; b < blocks; b++) {
            const Steps& at = panel[b];
            for (int line = 0; first == 0 && line < int(sizeof(Steps)); line += 64)
                _mm_prefetch((const char*)(panel + b + BLOCKS_AHEAD) + line, _MM_HINT_T0);
            for (int o = 0; o < O; o += 2) {
                __m512bh w[2];
                two_outputs(at, first + o, _mm512_loadu_si512(at.numbers[(first + o) / 4]), w[0], w[1]);
                for (int n = 0; n < N; n++) {
                    const __m512bh inputs = (__m512bh)_mm512_loadu_si512(x + n * x_row + b * INPUTS);
                    part[n][o] = _mm512_dpbf16_ps(part[n][o], w[0], inputs);
                    part[n][o + 1] = _mm512_dpbf16_ps(part[n][o + 1], w[1], inputs);
                }
            }
        }
        for (int n = 0; n < N; n++)
            for (int o = 0; o < O; o++) sums[n][first + o] = (V)part[n][o];
    }
    for (int n = 0; n < N; n++) results[n] = sums_of_rows(sums[n]);
}

// The least and the largest number that round to a bfloat16: half of its last place away.
INLINE void interval(V value, V& least, V& most) {
    const V away = (V)((VI)value + 0x8000), towards = (V)((VI)value - 0x8000);
    least = value > 0 ? towards : value < 0 ? away : V{};
    most = value > 0 ? away : value < 0 ? towards : V{};
}

INLINE V smaller(V a, V b) { return b < a ? b : a; }

INLINE V rounded(V v) { return (V)_mm512_roundscale_ps((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

INLINE V to_half_and_back(V v) {
    return (V)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE bool all(VI lanes) { return _mm512_movepi32_mask((__m512i)lanes) == 0xffff; }

// A step for each lane's `low`, and in which lanes every value comes back. What each value allows bounds the step
// from both sides; tried are the middle, and the nearest half-precision number, which is what most files hold.
INLINE VI fits(const V (&values)[INPUTS], const V (&numbers)[INPUTS], V low, V& step) {
    V from = splat(-INFINITY), to = splat(INFINITY);
    for (int i = 0; i < INPUTS; i++) {
        V least, most;
        interval(values[i], least, most);
        from = numbers[i] > 0 ? larger(from, (least - low) / numbers[i]) : from;
        to = numbers[i] > 0 ? smaller(to, (most - low) / numbers[i]) : to;
    }
    const V middle = (from + to) * 0.5f, half = to_half_and_back(middle);
    VI middle_fits = VI{} - 1, half_fits = VI{} - 1;
    for (int i = 0; i < INPUTS; i++) {
        middle_fits &= round_to(numbers[i] * middle + low, (const bf16*)nullptr) == values[i];
        half_fits &= round_to(numbers[i] * half + low, (const bf16*)nullptr) == values[i];
    }
    step = half_fits ? half : middle;
    return half_fits | middle_fits;
}

// Number, step and low of 16 outputs' 32 values, if there are any: the least value is taken for number 0 and the
// largest for 15. The least was rounded, too: what it may have been is tried, in sixteenths of its last place.
inline bool find_steps(const V (&values)[INPUTS], V (&numbers)[INPUTS], V& step, V& low) {
    V least = values[0], most = values[0];
    for (int i = 1; i < INPUTS; i++) {
        least = smaller(least, values[i]);
        most = larger(most, values[i]);
    }
    const V wide = (most - least) / 15.f, place = (V)((VI)least + 0x10000) - least;
    VI done = wide == 0;  // one value only
    step = V{};
    low = least;
    for (int i = 0; i < INPUTS; i++) numbers[i] = done ? V{} : rounded((values[i] - least) / wide);
    for (int n = 0; n < 17 && !all(done); n++) {
        const V tried = least + place * (float((n + 1) / 2 * (n % 2 ? 1 : -1)) / 16);
        V found;
        const VI fresh = fits(values, numbers, tried, found) & ~done;
        step = fresh ? found : step;
        low = fresh ? tried : low;
        done |= fresh;
    }
    return all(done);
}

// One block of the plain form, [16 lines][16 outputs][2 inputs].
inline bool keep_block(const bf16* lines, Steps& to) {
    V values[INPUTS], numbers[INPUTS], step, low;
    for (int i = 0; i < INPUTS; i += 2) {
        const VU both = (VU)load((const float*)(lines + i * COLUMNS));
        values[i] = (V)(both << 16);
        values[i + 1] = (V)(both & 0xffff0000u);
    }
    if (!find_steps(values, numbers, step, low)) return false;
    store(to.step, step);
    store(to.low, low);
    std::memset(to.numbers, 0, sizeof to.numbers);
    for (int i = 0; i < INPUTS; i++)
        for (int o = 0; o < COLUMNS; o++) to.numbers[o / 4][i] |= uint16_t(uint16_t(numbers[i][o]) << 4 * (o % 4));
    bool same = true;  // the judge is the code that serves
    for (int o = 0; o < COLUMNS; o += 2) {
        __m512bh w[2];
        two_outputs(to, o, _mm512_loadu_si512(to.numbers[o / 4]), w[0], w[1]);
        bf16 again[2][INPUTS];
        std::memcpy(again, w, sizeof again);
        for (int i = 0; i < INPUTS; i++)
            for (int second = 0; second < 2; second++)
                same &= again[second][i].bits == lines[i / 2 * LINE + (o + second) * 2 + i % 2].bits;
    }
    return same;
}

// `packed`: the plain form. `kept` becomes 0 as soon as one block has no steps, and `to` is of no use then.
inline void keep_steps(const void* packed, int64_t blocks, void* to, int32_t* kept, int32_t threads) {
    int32_t good = 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        int32_t still;
#pragma omp atomic read
        still = good;
        if (still && !keep_block((const bf16*)packed + b * INPUTS * COLUMNS, ((Steps*)to)[b])) {
#pragma omp atomic write
            good = 0;
        }
    }
    *kept = good;
}

}  // namespace

#endif
