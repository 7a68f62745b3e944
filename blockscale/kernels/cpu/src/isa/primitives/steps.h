// Stored scales of one level or two -> steps and factors (numerics.md, 1.3 and 4).
#pragma once

#include "plan.h"

namespace blockscale::BLOCKSCALE_ISA {
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

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
