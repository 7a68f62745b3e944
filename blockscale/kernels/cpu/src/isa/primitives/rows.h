// SPDX-License-Identifier: BSD-3-Clause
// Stored scales of one level or two -> steps and factors (numerics.md, 1.3 and 4); packing, which works
// on rows of codes, and values of chosen rows of a quantized matrix.
#pragma once

#include "plan.h"

namespace blockscale::BLOCKSCALE_ISA {

void round_columns(const ColumnsTask& task, int threads);  // columns.cpp
bool block_errors(const Spec& spec, const Layout& layout, const void* x, Dtype dtype, QParams scales,
                  double* errors, int threads);  // errors.cpp

namespace {

// outer * inner in the range of steps; 0 only where either is, and NaN stays.
inline float product(float outer, float inner) {
    float step = outer * inner;
    int32_t sign = to_bits(step) & INT32_MIN;
    float size = from_bits(to_bits(step) & INT32_MAX);
    size = size < 0x1p-149f ? 0x1p-149f : size;
    size = size > kFltMax ? kFltMax : size;
    bool zero = (outer == 0.0f) | (inner == 0.0f);
    return zero ? step : from_bits(to_bits(size) | sign);
}

// The steps of n neighbouring blocks from `first` on (section 1.3).
void table_steps(const Spec& spec, const Layout& layout, QParams from, int64_t first, int64_t n,
                 float* steps) {
    if (spec.scale != ScaleKind::two_level) return load_steps(spec, from.scale, first, n, steps);
    decode(*spec.inner, static_cast<const uint8_t*>(from.scale) + first, nullptr, n, steps);
    OuterIndex outer(layout.inner);
    if (outer.single) {  // a loop of its own, which vectors serve
        float only = from.outer[0];
        for (int64_t i = 0; i < n; ++i) steps[i] = product(only, steps[i]);
        return;
    }
    for (int64_t i = 0; i < n; ++i) steps[i] = product(from.outer[outer(first + i)], steps[i]);
}

// How elements of those blocks are counted in steps (section 4). `buffer` [n] may hold the result.
Factors block_factors(const Spec& spec, const Layout& layout, QParams from, int64_t first,
                      int64_t n, float* steps, float* buffer) {
    if (!spec.recip || spec.scale != ScaleKind::two_level)
        return factors_of(spec, steps, n, buffer);
    decode(*spec.inner, static_cast<const uint8_t*>(from.scale) + first, nullptr, n, buffer);
    OuterIndex outer(layout.inner);
    for (int64_t i = 0; i < n; ++i)
        buffer[i] = bounded(1.0f / from.outer[outer(first + i)] / buffer[i]);
    return {buffer, true};
}

// What the parts of a whole tensor mean, for kernels that read them themselves.
void all_steps(const Spec& spec, const Layout& layout, QParams from, float* steps) {
    FullPrecision guard;
    table_steps(spec, layout, from, 0, layout.grid.blocks(), steps);
}

void all_offsets(const Spec& spec, const void* stored, int64_t n, float* offsets) {
    FullPrecision guard;
    load_offsets(spec, stored, 0, n, offsets);
}

void all_zero_points(const Spec& spec, const void* stored, int64_t n, float* zero_points) {
    FullPrecision guard;
    load_zero_points(spec, stored, 0, n, zero_points);
}

// Rows of codes, several at a time where rows are short.
template <class Body>
void for_rows(int64_t rows, int64_t size, int threads, Body body) {
    int64_t height = larger(1, chosen(Choice::unit_elements) / larger(size, 1));
    for_units(ceil_div(rows, height), threads, rows * size >= chosen(Choice::threaded_elements), [&](int64_t i) {
        for (int64_t row = i * height; row < smaller(rows, (i + 1) * height); ++row) body(row);
    });
}

void pack(int bits, const void* patterns, int64_t rows, int64_t size, void* packed, int threads) {
    int64_t row_bytes = (size * bits + 7) / 8;
    for_rows(rows, size, threads, [&](int64_t row) {
        alignas(64) uint8_t codes[kChunk + 64], stream[2 * kChunk + 64];
        uint8_t* to = static_cast<uint8_t*>(packed) + row * row_bytes;
        for (int64_t c = 0; c < size; c += kChunk) {
            int64_t n = smaller(kChunk, size - c);
            if (bits < 8) {
                const uint8_t* from = static_cast<const uint8_t*>(patterns) + row * size + c;
                for (int64_t i = 0; i < n; ++i) codes[i] = from[i] & ((1 << bits) - 1);
                pack_bytes(bits, codes, n, stream);
            } else {
                pack_wide(bits, static_cast<const uint16_t*>(patterns) + row * size + c, n, stream);
            }
            memcpy(to + c * bits / 8, stream, ceil_div(n * bits, 8));
        }
    });
}

void unpack(int bits, const void* packed, int64_t rows, int64_t size, void* patterns,
            int threads) {
    int64_t row_bytes = (size * bits + 7) / 8;
    for_rows(rows, size, threads, [&](int64_t row) {
        alignas(64) uint8_t codes[kChunk + 64];
        const uint8_t* from = static_cast<const uint8_t*>(packed) + row * row_bytes;
        for (int64_t c = 0; c < size; c += kChunk) {
            int64_t n = smaller(kChunk, size - c), at = c * bits / 8;
            if (bits < 8) {
                unpack_bytes(bits, from + at, n, row_bytes - at, codes);
                memcpy(static_cast<uint8_t*>(patterns) + row * size + c, codes, n);
            } else {
                unpack_wide(bits, from + at, n, static_cast<uint16_t*>(patterns) + row * size + c);
            }
        }
    });
}

void decode_rows(const Spec& spec, const Grid& g, const void* packed, const float* steps,
                 const float* zero_points, const float* offsets, int64_t from, int64_t count,
                 int64_t first, int64_t size, float* values, int64_t stride) {
    alignas(64) uint8_t codes[2 * kChunk + 64];
    alignas(64) float plain[kChunk], z_buffer[kChunk];
    int bits = spec.element.bits;
    int64_t row_bytes = spec.row_bytes(g.columns);
    for (int64_t row = from; row < from + count; ++row) {
        const uint8_t* line = static_cast<const uint8_t*>(packed) + row * row_bytes;
        int64_t scales = row / g.block_rows * g.scale_columns();
        for (int64_t c = 0; c < size; c += kChunk) {
            int64_t column = first + c, n = smaller(kChunk, size - c), at = column * bits / 8;
            int64_t block = scales + column / g.block_columns;
            const void* patterns = codes;
            if (bits == 8 || bits == 16) {
                patterns = line + at;
            } else if (bits < 8) {
                unpack_bytes(bits, line + at, n, row_bytes - at, codes);
            } else {
                unpack_wide(bits, line + at, n, reinterpret_cast<uint16_t*>(codes));
            }
            float* to = values + (row - from) * stride + c;
#if defined(__AVX512F__)
            const uint8_t* bytes = static_cast<const uint8_t*>(patterns);
            if (wide_decodes(spec, column, g.block_columns, bytes, n)) {
                LaneSource source{steps + block, steps + block,
                                  zero_points ? zero_points + block : nullptr,
                                  offsets ? offsets + block : nullptr};
                wide_decode(spec, bytes, column, n, g.block_columns, source, false, to, Dtype::fp32);
                continue;
            }
#endif
            const float* z = expand_zero_points(g, zero_points ? zero_points + block : nullptr,
                                                {0, column, n}, z_buffer);
            decode(spec, patterns, z, n, plain);
            apply<Times>(plain, column, n, g.block_columns, steps + block, offsets ? z_buffer : to);
            if (offsets) apply<Plus>(z_buffer, column, n, g.block_columns, offsets + block, to);
        }
    }
}

// Rows `indices` [count] of a matrix -> y [count, columns]. False, and nothing written, if one of
// them is no row.
bool embedding(const Spec& spec, const Layout& layout, const void* packed, QParams scales,
               const int64_t* indices, int64_t count, void* y, Dtype dtype, int threads) {
    const Grid& g = layout.grid;
    for (int64_t i = 0; i < count; ++i)
        if (indices[i] < 0 || indices[i] >= g.rows) return false;
    int64_t blocks = g.scale_columns();
    for_rows(count, g.columns, threads, [&](int64_t i) {
        alignas(64) float values[kChunk];
        Array<float> steps(blocks), offsets(blocks), zero_points(blocks);
        int64_t scale = indices[i] / g.block_rows * blocks;
        table_steps(spec, layout, scales, scale, blocks, steps);
        // decode_rows indexes steps as the whole matrix does; these start at this row's.
        const float* from = steps.get() - scale;
        const float* added = nullptr;
        if (spec.offset != Stored::none) {
            load_offsets(spec, scales.offset, scale, blocks, offsets);
            added = offsets.get() - scale;
        }
        const float* zeros = nullptr;
        if (spec.asym) {
            load_zero_points(spec, scales.zero_point, scale, blocks, zero_points);
            zeros = zero_points.get() - scale;
        }
        for (int64_t c = 0; c < g.columns; c += kChunk) {
            int64_t n = smaller(kChunk, g.columns - c), at = i * g.columns + c;
            if (dtype == Dtype::fp32) {
                decode_rows(spec, g, packed, from, zeros, added, indices[i], 1, c, n,
                            static_cast<float*>(y) + at, n);
                continue;
            }
            decode_rows(spec, g, packed, from, zeros, added, indices[i], 1, c, n, values, n);
            narrow(values, dtype, n, static_cast<uint16_t*>(y) + at);
        }
    });
    return true;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
