// Where rounding stays within range, so that a gradient passes (numerics.md, section 5).
#pragma once

#include "encode.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

template <Rounding R, bool ASYM>
void integers_in_range(const Element& e, const float* y, const float* z, int64_t n,
                       uint8_t* __restrict inside) {
    for (int64_t i = 0; i < n; ++i) {
        float low = ASYM ? e.low - z[i] : e.low, high = ASYM ? e.high - z[i] : e.high;
        float t = y[i] > low - 1.0f ? y[i] : low - 1.0f;  // |t| stays small, and out is still out
        t = t < high + 1.0f ? t : high + 1.0f;
        float steps = round_steps<R>(t, 0.0f);
        inside[i] = (steps >= low) & (steps <= high) & (y[i] == y[i]);
    }
}

template <Rounding R>
void minifloats_in_range(const Element& e, const float* y, int64_t n, uint8_t* __restrict inside) {
    // Twice the largest power of two up to `high`: whatever reaches it is out. Rounding may reach
    // it from below, where it is no step of the element, so the limits here are one binade wider.
    float above = from_bits((to_bits(e.high) & kInfinity) + (1 << 23));
    MinifloatLimits m(e);
    m.high = above;
    for (int64_t i = 0; i < n; ++i) {
        int32_t binade, steps;
        float value;
        minifloat_steps<R>(m, y[i], 0.0f, &binade, &steps, &value);
        inside[i] = (value <= e.high) & (y[i] == y[i]);
    }
}

// y [n] in steps -> 1 where encoding it does not saturate. Stochastic rounding counts as nearest
// even, so that the mask does not depend on the draw.
inline void in_range(const Spec& spec, const float* y, const float* z, int64_t n, uint8_t* inside) {
    const Element& e = spec.element;
    bool drawn = spec.rounding == Rounding::stochastic;
    Rounding rounding = drawn ? Rounding::nearest_even : spec.rounding;
    switch (e.family) {
        case Family::binary:
            for (int64_t i = 0; i < n; ++i) inside[i] = (y[i] <= 1.0f) & (y[i] >= -1.0f);
            return;
        case Family::codebook: {
            float low = e.book->smallest, high = e.book->largest;
            for (int64_t i = 0; i < n; ++i) inside[i] = (y[i] >= low) & (y[i] <= high);
            return;
        }
        case Family::minifloat:
            return with_rounding(rounding, [&]<Rounding R>() {
                minifloats_in_range<R>(e, y, n, inside);
            });
        case Family::integer:
            return with_rounding(rounding, [&]<Rounding R>() {
                adds_zeros(spec) ? integers_in_range<R, true>(e, y, z, n, inside)
                                 : integers_in_range<R, false>(e, y, z, n, inside);
            });
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
