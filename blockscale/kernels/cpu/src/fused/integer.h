// SPDX-License-Identifier: BSD-3-Clause
// Ops on integers alone (blockscale/ops/integer), as tables of instruction sets have them.
#pragma once

#include <cstdint>

namespace blockscale {

// What codes and sums lie in memory as.
enum class Whole : int { i8, u8, i16, i32 };

// Integers [...]: x means x - zero steps.
struct Integers {
    const void* data;
    Whole type;
    int32_t zero;
};

// How sums end: clamp(round_half_even(sum * 2^-shift) + zero, low, high), shift -62 ... 62.
struct Ending {
    void* y;
    Whole type;  // no sums: i8, u8 or i16
    int32_t shift, zero, low, high;
};

// (a << left) + sign * (b << left), ended; b null: a alone; sign 0: a * b, both as they are.
// |result| <= largest.
struct IntegerSum {
    Integers a, b;
    int32_t a_left, b_left, sign;
    int64_t largest;
};

// As ops/integer/norms.py; weight and bias [columns] may be null.
struct IntegerNorm {
    Integers x;
    const int32_t* weight;
    const int64_t* bias;
    bool centered;
    int64_t epsilon;
};

// As ops/integer/softmax.py. Strides of [batch, head, row]; columns are contiguous. The mask's are of
// [batch, head, row, key], 0 is what is not seen. Query, key and value have 8 bits.
struct IntegerAttention {
    Integers query, key, value;
    int64_t query_strides[3], key_strides[3], value_strides[3];
    const uint8_t* seen;  // null: all
    int64_t seen_strides[4];
    int64_t batch, heads, shared, rows, keys, depth, width;
    bool causal;
    int32_t factor, right;
    const int32_t* table;  // [256]
};

struct IntegerOps {
    void (*sum)(const IntegerSum&, int64_t n, const Ending&, int threads);
    void (*norm)(const IntegerNorm&, int64_t rows, int64_t columns, const Ending&, int threads);
    // To [batch, heads, rows, width].
    void (*attention)(const IntegerAttention&, const Ending&, int threads);
};

}  // namespace blockscale
