// SPDX-License-Identifier: BSD-3-Clause
// The primitives of docs/numerics.md, sections 3 to 6, on contiguous memory. One table per instruction set.
#pragma once

#include <cstdint>

#include "grid.h"
#include "spec.h"

namespace blockscale {

// The stored parts of a format's scale, each null where the format has none (see core.reference.QParams).
// `scale` is float, fp16, bf16 or bytes as the format says; `outer` float; `zero_point` int32 or as
// Spec::zero says; `offset` as Spec::offset says.
struct QParams {
    void* scale;
    float* outer;
    void* zero_point;
    void* offset;
};

// Stochastic rounding: the seed, and the index of the tensor's first element (section 2).
struct Seed {
    int64_t key, first;
};

// Columns [columns, rows] of float64 that are rounded one after the other: see isa/primitives/columns.cpp.
// A scale for each element; `coupling` [columns, columns], `base` null or as `wanted`; the rest is written,
// `codes` as patterns of code_bytes().
struct ColumnsTask {
    const Spec& spec;
    const Layout& layout;
    int64_t columns, rows;
    const double *wanted, *base, *coupling;
    QParams scales;
    void* codes;
    float* values;
    double* errors;
};

struct Primitives {
    // x -> the scale of each block.
    void (*choose)(const Spec&, const Layout&, const void* x, Dtype, QParams, int threads);
    // x and its scale -> codes; `packed`: as section 6 says, else one pattern per code_bytes().
    void (*quantize)(const Spec&, const Layout&, const void* x, Dtype, QParams, void* codes,
                     bool packed, Seed, int threads);
    // choose and quantize, in one pass over memory where a block fits the cache.
    void (*choose_quantize)(const Spec&, const Layout&, const void* x, Dtype, QParams, void* codes,
                            bool packed, Seed, int threads);
    void (*dequantize)(const Spec&, const Layout&, const void* codes, bool packed, QParams, void* y,
                       Dtype, int threads);
    // With given = false the scale is chosen and kept nowhere.
    void (*fake_quantize)(const Spec&, const Layout&, const void* x, Dtype, bool given, QParams,
                          void* y, Seed, int threads);
    // `gradient` where x is in range, else 0.
    void (*straight_through)(const Spec&, const Layout&, const void* x, Dtype, bool given, QParams,
                             const void* gradient, Dtype gradient_dtype, void* y, int threads);
    // Patterns [rows, size] of code_bytes() <-> packed rows.
    void (*pack)(int bits, const void* patterns, int64_t rows, int64_t size, void* packed,
                 int threads);
    void (*unpack)(int bits, const void* packed, int64_t rows, int64_t size, void* patterns,
                   int threads);
    // Rows [from, from + count) of a matrix (grid.planes = 1), columns [first, first + size) of
    // codes packed by whole rows, as float32 values; for kernels that dequantize as they go.
    // `first` lies on a byte. Runs on the calling thread.
    void (*decode)(const Spec&, const Grid&, const void* packed, const float* steps,
                   const float* zero_points, const float* offsets, int64_t from, int64_t count,
                   int64_t first, int64_t size, float* values, int64_t stride);
    // The float32 step of each block (section 1.3) [grid.blocks()].
    void (*steps)(const Spec&, const Layout&, QParams, float* steps);
    // n stored offsets or zero points as float32.
    void (*offsets)(const Spec&, const void* stored, int64_t n, float* offsets);
    void (*zero_points)(const Spec&, const void* stored, int64_t n, float* zero_points);
    // Rows of a matrix [rows, columns] (grid: NativeFormat::matrix) -> y [count, columns]. False,
    // and nothing written, if an index is out of range.
    bool (*embedding)(const Spec&, const Layout&, const void* packed, QParams,
                      const int64_t* indices, int64_t count, void* y, Dtype, int threads);
    void (*round_columns)(const ColumnsTask&, int threads);
    // x -> what a round trip under its scale loses of each block, the sum of the squares in float64 in the
    // order of docs/numerics.md, 3.5. False, and nothing written, where blocks do not lie in rows.
    bool (*block_errors)(const Spec&, const Layout&, const void* x, Dtype, QParams, double* errors,
                         int threads);
};

}  // namespace blockscale
