// SPDX-License-Identifier: BSD-3-Clause
// Ops that take and give codes or floats (blockscale/ops/fused): what comes in is read row by row, and
// what goes out is quantized while it is in the cache. One table per instruction set.
#pragma once

#include <cstdint>

#include "../primitives.h"

namespace blockscale {

// A tensor [rows, columns] as an op reads it: float32, or codes whose scales lie along its rows.
struct Rows {
    void* data;
    const Spec* spec;  // null: `data` are floats
    int64_t block;     // columns that share a scale; 0: all rows have one
    QParams parts;
};

// Where a result goes: as floats, as codes, or both; either `values` or `codes.data` may be null.
// given: the scales of the codes are there; else they are chosen and written.
struct Result {
    float* values;
    Rows codes;
    bool given;
};

// layer_norm if centered, else rms_norm; weight and bias [columns] may be null.
struct Norm {
    bool centered;
    float eps;
    const float *weight, *bias;
};

// softmax(scale * query @ key.T + mask) @ value for each batch and head, whose last dimension is
// contiguous. Strides of [batch, head, row] in numbers; those of the mask of [batch, head, row, key].
// shared: so many heads of the query have one of key and value.
struct Attention {
    const float *query, *key, *value;
    int64_t query_strides[3], key_strides[3], value_strides[3];
    const float* mask;  // null: none
    int64_t mask_strides[4];
    int64_t batch, heads, shared, rows, keys, depth, width;
    bool causal;
    float scale;
};

// Keys or values in codes, a matrix [batch * heads * tokens, features] whose blocks are of one row each.
struct CachedRows {
    const Spec* spec;
    const Layout* layout;
    const void* codes;
    QParams scales;
};

// Attention of `queries` new tokens, the last of the recent ones, for each head of keys and values.
// query [batch, heads, rows, depth], where the rows are the new tokens for each head of the query that
// shares these keys; recent_keys [batch, heads, recent, depth], recent_values [.., width], behind those in
// codes. mask: added to scores [batch, heads, rows, tokens + recent], with strides; null: a token sees
// those before it and itself. sinks: of each head of the query [heads * rows / queries] a score that has
// no value, or null. chunk: keys in codes lie feature by feature, [.., tokens / chunk, depth, chunk]; 0:
// token by token.
struct CachedAttention {
    CachedRows keys, values;
    const float *query, *recent_keys, *recent_values, *mask, *sinks;
    int64_t mask_strides[4];
    int64_t chunk;
    int64_t batch, heads, rows, queries, tokens, recent, depth, width;
    float scale;
};

enum class Binary : int { add, sub, mul, div };

struct FusedOps {
    // out[i] = table[codes[i]], of 256 entries of 1, 2 or 4 bytes.
    void (*look_up)(const void* table, int bytes, const uint8_t* codes, int64_t n, void* out,
                    int threads);
    // The same of 65536 entries, by codes of 16 bits.
    void (*look_up_wide)(const void* table, int bytes, const uint16_t* codes, int64_t n, void* out,
                         int threads);
    // The norm of a + b (of a, if b is null) over rows; sums [rows, columns]: a + b, unless null.
    void (*norm)(const Norm&, const Rows& a, const Rows* b, int64_t rows, int64_t columns,
                 float* sums, const Result&, int threads);
    void (*binary)(Binary, const Rows& a, const Rows& b, int64_t rows, int64_t columns,
                   const Result&, int threads);
    // To a result [batch * heads * rows, width]; width is a multiple of 16.
    void (*attention)(const Attention&, const Result&, int threads);
    // -> y [batch, heads, rows, width].
    void (*cached_attention)(const CachedAttention&, float* y, int threads);
};

}  // namespace blockscale
