// Stored scales of one level or two -> steps and factors (numerics.md, 1.3 and 4).
#pragma once

#include "plan.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// The steps of n neighbouring blocks from `first` on (section 1.3).
void table_steps(const Spec& spec, const Layout& layout, QParams from, int64_t first, int64_t n,
                 float* steps) {
    if (spec.scale != ScaleKind::two_level) return load_steps(spec, from.scale, first, n, steps);
    decode(*spec.inner, static_cast<const uint8_t*>(from.scale) + first, nullptr, n, steps);
    OuterIndex outer(layout.inner);
    float only = from.outer[0];
    for (int64_t i = 0; i < n; ++i) {
        float each = outer.single ? only : from.outer[outer(first + i)], step = each * steps[i];
        int32_t sign = to_bits(step) & INT32_MIN;
        float size = from_bits(to_bits(step) & INT32_MAX);
        size = size < 0x1p-149f ? 0x1p-149f : size;  // NaN stays
        size = size > kFltMax ? kFltMax : size;
        bool zero = (each == 0.0f) | (steps[i] == 0.0f);
        steps[i] = zero ? step : from_bits(to_bits(size) | sign);
    }
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

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
