// Stored scales of one level or two -> steps and factors (numerics.md, 1.3 and 4).
#pragma once

#include "plan.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Multiplies the values of n inner scales from `first` on by their outer scales.
inline void times_outer(const Grid& inner, const float* outers, int64_t first, int64_t n,
                        float* __restrict values) {
    OuterIndex outer(inner);
    if (outer.single) {
        float only = outers[0];
        for (int64_t i = 0; i < n; ++i) values[i] = only * values[i];
    } else {
        for (int64_t i = 0; i < n; ++i) values[i] = outers[outer(first + i)] * values[i];
    }
}

// The steps of n neighbouring blocks from `first` on (section 1.3).
void table_steps(const Spec& spec, const Layout& layout, QParams from, int64_t first, int64_t n,
                 float* steps) {
    if (spec.scale != ScaleKind::two_level) return load_steps(spec, from.scale, first, n, steps);
    decode(*spec.inner, static_cast<const uint8_t*>(from.scale) + first, nullptr, n, steps);
    times_outer(layout.inner, from.outer, first, n, steps);
    for (int64_t i = 0; i < n; ++i) {
        float step = steps[i];
        step = step < 0x1p-149f ? 0x1p-149f : step;  // NaN stays
        steps[i] = step > kFltMax ? kFltMax : step;
    }
}

// How elements of those blocks are counted in steps (section 4). `buffer` [n] may hold the result.
Factors block_factors(const Spec& spec, const Layout& layout, QParams from, int64_t first,
                      int64_t n, float* steps, float* buffer) {
    if (!spec.recip || spec.scale != ScaleKind::two_level)
        return factors_of(spec, steps, n, buffer);
    decode(*spec.inner, static_cast<const uint8_t*>(from.scale) + first, nullptr, n, buffer);
    OuterIndex outer(layout.inner);
    for (int64_t i = 0; i < n; ++i) {
        float inverse = 1.0f / from.outer[outer(first + i)] / buffer[i];
        buffer[i] = inverse > kFltMax ? kFltMax : inverse;
    }
    return {buffer, true};
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
