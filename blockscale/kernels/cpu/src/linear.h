// SPDX-License-Identifier: BSD-3-Clause
// Linear layers y = x · Wᵀ + bias on contiguous memory. One table per instruction set.
//
// k runs along the sum, n over the outputs, m over the rows of x. Three regimes: integers times
// integers; floats times weights that are decoded in registers (few rows); floats times weights
// that are decoded panel by panel (everything else).
#pragma once

#include "fused/integer.h"
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
    int64_t reach;          // the largest |c - zero| that codes and zero points allow

    int64_t panels() const { return (n + kPanel - 1) / kPanel; }
    int64_t chunks() const { return (k + kCodes - 1) / kCodes; }
    int64_t blocks() const { return (k + block - 1) / block; }
    int64_t chunk_bytes() const { return kPanel * kCodes / (nibbles ? 2 : 1); }
    int64_t offset() const { return nibbles ? 8 : 128; }
};

// Rows that are the places of a convolution over codes x [batch, size, channels]: each holds the
// cells of the kernel one after another, `channels` codes each. Fewer dimensions: the first are 1.
struct Window {
    int64_t size[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
    int64_t channels;

    int64_t cells() const { return kernel[0] * kernel[1] * kernel[2]; }
};

// x of a linear layer, and how it is quantized to integers.
struct IntegerInput {
    const void* x;
    Dtype dtype;
    int64_t rows;
    const Spec* spec;
    int64_t block;      // elements of a row that share a scale, at most k; 0: one scale for all of x
    const void* scale;  // that one, as stored; null: chosen from x
    const int32_t* zero_point;  // beside a given scale of an asym format

    // Of codes: x are packed rows of them or, with a window, one a byte; all scales are given.
    bool codes;
    const Window* window;  // null: rows are x's own
    int64_t scales;        // how many there are: of x, not of the rows that a window makes
};

// x of a convolution by vectors, without patches: numbers [batch, size, channels], or integer codes of
// up to 8 bits, one a byte, that share a scale; of planes numbers [batch, channels, size].
struct Image {
    const void* x;
    Dtype dtype;        // of numbers
    const Spec* codes;  // null: numbers
    float step;         // of codes, else 1
    int32_t zero_point;
    int64_t batch, groups;
    Window window;
    const struct Codes* by = nullptr;  // how numbers are quantized first; `step`: of these codes
};

// A weight as vpdpbusd multiplies it where x lies: [panels][cells under the kernel][32][4] codes less their zero
// points, of four channels each or, where an output sees one channel, of four neighbours along a line; zeros
// for those that are none; and the sums of all of an output's. Without vpdpbusd, of one channel,
// [panels][cells][32] in float32.
struct PlaneWeight {
    const int8_t* codes;
    const int32_t* sums;  // [panels * 32]
    bool whole;           // these are integers
};

// What of a convolution its PlaneWeight depends on: channels that an output sees; cells of a line of the kernel
// whose neighbours may share a cell, 0: none may.
struct PlaneShape {
    int64_t inner, width;

    bool operator==(const PlaneShape&) const = default;
    // Cells of so many codes of an output.
    int64_t cells(int64_t k) const {
        return inner == 1 && width ? k / width * ((width + 3) / 4) : k / inner * ((inner + 3) / 4);
    }
};

// What LinearWeight adds to both for the dot products.
struct IntegerSums {
    int64_t block;        // codes along k whose products are summed in int32
    const float* steps;   // of codes: those of x's scales
    const int32_t* sums;  // [panels][sums of blocks][32], of c - zero; null where nothing needs them
};

// A weight as stored, and the step, zero point and offset of each block of `grid` (planes = 1).
// Behind steps, zero points, offsets and scale codes 64 bytes may be read.
struct FloatWeight {
    const Spec* spec;
    Grid grid;  // rows: n, columns: k
    const uint8_t* codes;
    const float* steps;
    const float* zero_points;    // null without
    const float* offsets;        // null without
    const uint8_t* scale_codes;  // one byte a step where that says it, times `outer`; else null
    float outer;
};

// What becomes of a sum and its bias; in the order of ACTIVATIONS (blockscale/kernels/cpu/fused_linear.py).
enum class Activation : int { none, relu, relu6, gelu, gelu_tanh, silu, hardswish, sigmoid, tanh };

// Results that are integer codes of up to 8 bits under one given scale (numerics.md, section 4).
struct Codes {
    const Spec* spec;
    float by;         // y is divided by it, or multiplied
    bool multiply;
    int32_t zero_point;
};

// Integer sums that end in integers, by rounding shifts (blockscale/ops/integer/shifts.py). W is int32, or
// int64 where they are wide. Sums of products wrap at 2^32: whoever asks proves that they fit.
struct Shifts {
    // [5][panels * 32] of W, for each output: bias; bits to the right, 0 to 31 (wide: 62); half a step, 1 of no
    // bits; what is shifted to the left at most in magnitude; bits to the left. One of the two shifts is 0.
    const void* ends;
    bool wide;
    const void* before;   // [rows, n] of W, shifted by before_left and added; may be y; null: none
    int32_t before_left;
    Rounding rounding;    // not stochastic
    Whole type;           // of y; i32: sums, of W
    int64_t zero, low, high;  // after the shift: + zero, within low and high
};

struct Output {
    const float* bias;  // null without
    void* y;
    Dtype dtype;        // of the result, also where codes are made of it
    Activation activation;
    const Codes* codes;    // null: y are numbers
    const Shifts* shifts;  // null: y are numbers or codes; else nothing but y of the above counts
    int64_t image = 0;   // rows of one image whose numbers lie channels first; 0: rows lie as they are
};

struct Linears {
    // Fills the parts of an IntegerWeight. False if the integer kernels must not be used: a step is
    // NaN or so far from 1 that float32 sums of integers times steps could leave its range.
    bool (*pack_integers)(const FloatWeight&, const IntegerWeight& layout, uint8_t* codes,
                          float* scales, int32_t* zeros, int threads);
    // The sums of c - zero over `block` codes (IntegerSums::sums).
    void (*sum_blocks)(const IntegerWeight&, int64_t block, int32_t* sums, int threads);
    void (*integers)(const IntegerWeight&, const IntegerInput&, const IntegerSums&, const Output&,
                     int threads);
    // These two leave the activation to `activate`, and give no codes. in_order: each result is summed up
    // along k one product after the other, so that a row's do not depend on the other rows of x.
    void (*floats)(const FloatWeight&, const void* x, Dtype, int64_t rows, const Output&,
                   int threads, bool in_order);
    // How many rows `few_rows` pays for; 0 if it cannot take this weight. Reads all of the weight.
    int64_t (*few)(const FloatWeight&, int threads);
    // As `floats`. False, and nothing written, if x has values too large or small to be scaled late.
    bool (*few_rows)(const FloatWeight&, const void* x, Dtype, int64_t rows, const Output&,
                     int threads);
    void (*activate)(Activation, float* y, int64_t n, int threads);  // in place
    // A convolution. False, and nothing written, if the weight is not finite or, for results by shifts, if float32
    // might not hold a sum. packed: of integers, of codes of 8 bits; null: products are those of numbers.
    bool (*direct)(const FloatWeight&, const PlaneWeight* packed, const Image&, const Output&, int threads);
    // The same of x whose channels lie first, so do those of the result, which are numbers and end in no
    // activation. packed: null: products are those of numbers.
    bool (*planes)(const FloatWeight&, const PlaneWeight* packed, const Image&, const Output&, int threads);
    // Fills the parts of a PlaneWeight and says in `whole` what they are. False where its codes cannot be
    // multiplied so: several steps to an output, or several channels without vpdpbusd.
    bool (*pack_planes)(const FloatWeight&, const PlaneShape&, int8_t* codes, int32_t* sums, bool* whole);
    // `planes` matrices [rows, columns] of numbers of 1, 2 or 4 bytes -> [columns, rows].
    void (*transpose)(int bytes, const void* x, int64_t planes, int64_t rows, int64_t columns, void* y,
                      int threads);
};

}  // namespace blockscale
