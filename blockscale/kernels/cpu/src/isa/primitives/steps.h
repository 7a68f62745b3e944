// Stored scales of one level or two -> steps and factors (numerics.md, 1.3 and 4).
#pragma once

#include "plan.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// The step of an outer scale and the value of an inner one: 0 only where one of them is.
inline float step_of(float outer, float value) {
    float step = outer * value;
    int32_t sign = to_bits(step) & INT32_MIN;
    float size = from_bits(to_bits(step) & INT32_MAX);
    size = size < 0x1p-149f ? 0x1p-149f : size;  // NaN stays
    size = size > kFltMax ? kFltMax : size;
    bool zero = (outer == 0.0f) | (value == 0.0f);
    return zero ? step : from_bits(to_bits(size) | sign);
}

// The values of n inner scales from `first` on -> their steps.
inline void times_outer(const Grid& inner, const float* outers, int64_t first, int64_t n,
                        float* __restrict values) {
    OuterIndex outer(inner);
    if (outer.single) {
        float only = outers[0];
        for (int64_t i = 0; i < n; ++i) values[i] = step_of(only, values[i]);
    } else {
        for (int64_t i = 0; i < n; ++i) values[i] = step_of(outers[outer(first + i)], values[i]);
    }
}

// The steps of n neighbouring blocks from `first` on (section 1.3).
void table_steps(const Spec& spec, const Layout& layout, QParams from, int64_t first, int64_t n,
                 float* steps) {
    if (spec.scale != ScaleKind::two_level) return load_steps(spec, from.scale, first, n, steps);
    decode(*spec.inner, static_cast<const uint8_t*>(from.scale) + first, nullptr, n, steps);
    times_outer(layout.inner, from.outer, first, n, steps);
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
