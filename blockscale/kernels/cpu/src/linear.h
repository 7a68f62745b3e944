// Linear layers y = x · Wᵀ + bias on contiguous memory. One table per instruction set.
//
// k runs along the sum, n over the outputs, m over the rows of x. Three regimes: integers times
// integers; floats times weights that are decoded in registers (few rows); floats times weights
// that are decoded panel by panel (everything else).
#pragma once

#include "primitives.h"

namespace blockscale {

constexpr int64_t kPanel = 32;   // outputs whose codes lie together
constexpr int64_t kCodes = 16;   // codes along k in a chunk; the last chunk is filled with zeros

// Integer weights as the dot products read them: unsigned codes c of the value c - zero, in panels
// [n / 32][chunks][4][32][4] along (panel, chunk, step, output, k); of elements of up to 4 bits the
// low and high nibbles of a byte are those of neighbouring steps.
struct IntegerWeight {
    int64_t n, k, block;    // block: codes along k that share a scale
    bool nibbles;
    const uint8_t* codes;
    const float* scales;    // [panels][blocks][32]
    const int32_t* zeros;   // the same; null: zero is 128, of nibbles 8, everywhere

    int64_t panels() const { return (n + kPanel - 1) / kPanel; }
    int64_t chunks() const { return (k + kCodes - 1) / kCodes; }
    int64_t blocks() const { return (k + block - 1) / block; }
    int64_t chunk_bytes() const { return kPanel * kCodes / (nibbles ? 2 : 1); }
    int64_t offset() const { return nibbles ? 8 : 128; }
};

// x of a linear layer, and how it is quantized to integers.
struct IntegerInput {
    const void* x;
    Dtype dtype;
    int64_t rows;
    const Spec* spec;
    int64_t block;      // elements of a row that share a scale, at most k; 0: one scale for all of x
    const void* scale;  // that one, as stored; null: chosen from x
};

// A weight as stored, and the step, zero point and offset of each block of `grid` (planes = 1).
// Behind steps, zero points, offsets and scale codes 64 bytes may be read.
struct FloatWeight {
    const Spec* spec;
    Grid grid;  // rows: n, columns: k
    const uint8_t* codes;
    const float* steps;
    const int32_t* zero_points;  // null without
    const float* offsets;        // null without
    const uint8_t* scale_codes;  // one byte a step where that says it, times `outer`; else null
    float outer;
};

struct Output {
    const float* bias;  // null without
    void* y;
    Dtype dtype;
};

struct Linears {
    // Fills the parts of an IntegerWeight. False if the integer kernels must not be used: a step is
    // NaN or so far from 1 that float32 sums of integers times steps could leave its range.
    bool (*pack_integers)(const FloatWeight&, const IntegerWeight& layout, uint8_t* codes,
                          float* scales, int32_t* zeros, int threads);
    void (*integers)(const IntegerWeight&, const IntegerInput&, const Output&, int threads);
    void (*floats)(const FloatWeight&, const void* x, Dtype, int64_t rows, const Output&,
                   int threads);
    // How many rows `few_rows` pays for; 0 if it cannot take this weight. Reads all of the weight.
    int64_t (*few)(const FloatWeight&, int threads);
    // As `floats`. False, and nothing written, if x has values too large or small to be scaled late.
    bool (*few_rows)(const FloatWeight&, const void* x, Dtype, int64_t rows, const Output&,
                     int threads);
};

}  // namespace blockscale
