// Norms, activation and rotation: the operators of ops/1.0 that stand between two linears.
//
// A row of a small model is less work than waking a thread: several threads share only what is worth it.
#pragma once

#include <algorithm>
#include <cmath>

#include "abi.h"
#include "vec.h"

namespace {

constexpr int64_t SHARE = 16384;  // elements from which on a second thread helps

INLINE int helpers(int64_t elements, int threads) { return elements < SHARE ? 1 : threads; }

// residual += x (rounded as stored) where there is one; then x / sqrt(mean(x^2) + eps) * weight.
template <class T>
void rms_norm_typed(const T* x, int64_t x_row, T* residual, const T* weight, T* out, int64_t rows, int64_t size, float eps, int threads) {
#pragma omp parallel for num_threads(helpers(rows * size, threads)) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) {
        const T* from = x + row * x_row;
        T* kept = residual ? residual + row * size : nullptr;
        V squares{};
        float rest = 0;
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) {
            V value = load(from + i);
            if (kept) {
                store(kept + i, load(kept + i) + value);
                value = load(kept + i);
            }
            squares += value * value;
        }
        for (; i < size; i++) {
            float value = to_float(from[i]);
            if (kept) {
                put(kept + i, to_float(kept[i]) + value);
                value = to_float(kept[i]);
            }
            rest += value * value;
        }
        const float scale = 1 / std::sqrt((sum(squares) + rest) / float(size) + eps);
        const T* source = kept ? kept : from;
        T* to = out + row * size;
        for (i = 0; i + LANES <= size; i += LANES) store(to + i, load(source + i) * scale * load(weight + i));
        for (; i < size; i++) put(to + i, to_float(source[i]) * scale * to_float(weight[i]));
    }
}

void rms_norm(int32_t dtype, const void* x, int64_t x_row, void* residual, const void* weight, void* out, int64_t rows,
              int64_t size, float eps, int32_t threads) {
    if (dtype == BFLOAT16)
        rms_norm_typed((const bf16*)x, x_row, (bf16*)residual, (const bf16*)weight, (bf16*)out, rows, size, eps, threads);
    else
        rms_norm_typed((const float*)x, x_row, (float*)residual, (const float*)weight, (float*)out, rows, size, eps, threads);
}

// gate_up [rows, 2 size] -> gate / (1 + e^-gate) * up, rounded once.
template <class T>
void silu_mul_typed(const T* gate_up, T* out, int64_t rows, int64_t size, int threads) {
#pragma omp parallel for num_threads(helpers(rows * size, threads)) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) {
        const T *gate = gate_up + row * 2 * size, *up = gate + size;
        T* to = out + row * size;
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) {
            const V g = load(gate + i);
            store(to + i, g / (exponential(-g) + 1.f) * load(up + i));
        }
        for (; i < size; i++) {
            const float g = to_float(gate[i]);
            put(to + i, g / (1 + std::exp(-g)) * to_float(up[i]));
        }
    }
}

void silu_mul(int32_t dtype, const void* gate_up, void* out, int64_t rows, int64_t size, int32_t threads) {
    if (dtype == BFLOAT16)
        silu_mul_typed((const bf16*)gate_up, (bf16*)out, rows, size, threads);
    else
        silu_mul_typed((const float*)gate_up, (float*)out, rows, size, threads);
}

// The first `rotary` of each head: x * cos + (halves of x exchanged) * sin. cos and sin [rows, rotary].
template <class T>
void rope_typed(T* x, int64_t x_row, const T* cos, const T* sin, int64_t rows, int64_t heads, int64_t head_dim, int64_t rotary, int threads) {
    const int64_t half = rotary / 2;
#pragma omp parallel for num_threads(helpers(rows * heads * rotary, threads)) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) {
        const T *c = cos + row * rotary, *s = sin + row * rotary;
        for (int64_t head = 0; head < heads; head++) {
            T *low = x + row * x_row + head * head_dim, *high = low + half;
            int64_t i = 0;
            for (; i + LANES <= half; i += LANES) {
                const V a = load(low + i), b = load(high + i);
                store(low + i, a * load(c + i) + b * load(s + i));
                store(high + i, b * load(c + half + i) + a * load(s + half + i));
            }
            for (; i < half; i++) {
                const float a = to_float(low[i]), b = to_float(high[i]);
                put(low + i, a * to_float(c[i]) + b * to_float(s[i]));
                put(high + i, b * to_float(c[half + i]) + a * to_float(s[half + i]));
            }
        }
    }
}

void rope(int32_t dtype, void* x, int64_t x_row, const void* cos, const void* sin, int64_t rows, int64_t heads,
          int64_t head_dim, int64_t rotary, int32_t threads) {
    if (dtype == BFLOAT16)
        rope_typed((bf16*)x, x_row, (const bf16*)cos, (const bf16*)sin, rows, heads, head_dim, rotary, threads);
    else
        rope_typed((float*)x, x_row, (const float*)cos, (const float*)sin, rows, heads, head_dim, rotary, threads);
}

}  // namespace
