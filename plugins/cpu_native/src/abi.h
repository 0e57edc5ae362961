// What Python calls, as plain C: pointers and sizes. No torch and no Python headers, so that one library
// serves every version of both. Sizes and strides are in elements; all functions return nothing and cannot fail.
#pragma once

#include <cstdint>

// Dtypes of stored values.
enum Dtype : int32_t { FLOAT32 = 0, BFLOAT16 = 1 };

// A run of adjacent query tokens against a run of one row's stored tokens.
//
// Tokens [token, token + n) meet stored tokens [begin, end) found by `page_row` of the page table. Token
// token + i stands at position + i: it sees positions up to its own, the last `window` of them; a
// position of SEES_ALL sees everything. `partial` >= 0: results go to partials [partial, partial + n) of the
// workspace, to be merged; -1: they are final.
struct Piece {
    int32_t token, n, page_row, begin, end, position, partial;
    int32_t items;  // work items before this piece: query blocks times KV heads
};

constexpr int32_t SEES_ALL = 1 << 30;

// The partial results of one token: `ids` [first, last) of the step.
struct Merge {
    int32_t token, first, last;
};

// One step's work, for all layers. Counts are [all, of the leading rows]: those stand first.
struct Step {
    const Piece* pieces;
    const Merge* merges;
    const int32_t* ids;
    const int32_t* page_table;
    const int32_t* slots;  // [tokens]: where new entries go, page * page_tokens + offset
    float* partials;       // [n, q_heads, head_dim + 2]: unnormalised sums, the largest score, the sum of weights
    int64_t page_table_stride;
    int32_t n_pieces[2], n_items[2], n_merges[2];
    int32_t tokens, page_tokens;
};

// What a layer group computes; fixed at build.
struct Group {
    int32_t dtype, q_heads, kv_heads, head_dim, window, threads, block;  // block: query tokens of a work item
    float scale, soft_cap;
};

// One layer's memory. Planes are [pages, page_tokens, kv_heads, head_dim], dense within a page.
struct Layer {
    void* k;
    void* v;
    int64_t k_page, v_page;  // from one page to the next
    const float* sinks;      // [q_heads] or null
};

enum Rows : int32_t { ALL = 0, LEADING = 1, REST = 2 };

struct Kernels {
    void (*store)(const Group*, const Step*, const Layer*, const void* k, const void* v, int64_t k_token, int64_t v_token);
    void (*attend)(const Group*, const Step*, const Layer*, const void* q, int64_t q_token, void* out, float* lse, int32_t rows);
    void (*rms_norm)(int32_t dtype, const void* x, int64_t x_row, void* residual, const void* weight, void* out,
                     int64_t rows, int64_t size, float eps, int32_t threads);
    void (*silu_mul)(int32_t dtype, const void* gate_up, void* out, int64_t rows, int64_t size, int32_t threads);
    void (*rope)(int32_t dtype, void* x, int64_t x_row, const void* cos, const void* sin, int64_t rows, int64_t heads,
                 int64_t head_dim, int64_t rotary, int32_t threads);
    // Null without bfloat16 instructions. `steps`: what keep_steps (steps.h) made of the packed weight, or null.
    void (*linear)(const void* x, int64_t x_row, const void* packed, const void* steps, const void* bias, void* out,
                   int64_t rows, int64_t in, int64_t out_size, int32_t threads);
    void (*keep_steps)(const void* packed, int64_t blocks, void* to, int32_t* kept, int32_t threads);
};
