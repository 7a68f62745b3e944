// SPDX-License-Identifier: BSD-3-Clause
// Elements in steps -> codes, the values of those codes, or where they stay within range, so that a gradient
// passes (numerics.md, sections 2, 4 and 5).
// One loop per family and rounding, over a whole chunk, whatever the blocks are.
#pragma once

#include "../simd/octaves.h"
#include "blocks.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// t, |t| < 2^22, to an integer.
template <Rounding R>
inline float round_steps(float t, float u) {
    float nearest = (t + kMagic) - kMagic;
    if constexpr (R == Rounding::nearest_even) return nearest;
    if constexpr (R == Rounding::down) return nearest - (nearest > t ? 1.0f : 0.0f);
    if constexpr (R == Rounding::up) return nearest + (nearest < t ? 1.0f : 0.0f);
    float size = from_bits(to_bits(t) & 0x7FFFFFFF);
    float whole = (size + kMagic) - kMagic;
    whole = whole - (whole > size ? 1.0f : 0.0f);  // toward zero, which the other two start from
    static_assert(R == Rounding::nearest_even || R == Rounding::down || R == Rounding::up ||
                  R == Rounding::toward_zero || R == Rounding::nearest_away ||
                  R == Rounding::stochastic);
    if constexpr (R == Rounding::nearest_away) whole += size - whole >= 0.5f ? 1.0f : 0.0f;
    if constexpr (R == Rounding::stochastic) whole += u < size - whole ? 1.0f : 0.0f;
    return from_bits(to_bits(whole) | (to_bits(t) & INT32_MIN));
}

struct IntegerLimits {
    float low, high;
};

// y rounded and saturated, without the zero point: exactly code - z. NaN becomes 0.
template <Rounding R, bool ASYM>
inline float integer_steps(IntegerLimits limits, float y, float z, float u) {
    // Saturating before rounding is the same: the limits are integers, and R keeps order.
    float low = ASYM ? limits.low - z : limits.low, high = ASYM ? limits.high - z : limits.high;
    float t = y == y ? y : 0.0f;
    t = t > low ? t : low;
    t = t < high ? t : high;
    return round_steps<R>(t, u);
}

template <Rounding R, bool ASYM, class Code>
void integers_to_codes(const Element& e, const float* y, const float* z, const float* u, int64_t n,
                       Code* __restrict codes) {
    IntegerLimits limits{e.low, e.high};
    int32_t mask = (1 << e.bits) - 1;
    for (int64_t i = 0; i < n; ++i) {
        float steps = integer_steps<R, ASYM>(limits, y[i], ASYM ? z[i] : 0.0f,
                                             R == Rounding::stochastic ? u[i] : 0.0f);
        int32_t code = static_cast<int32_t>(ASYM ? steps + z[i] : steps);
        codes[i] = static_cast<Code>(code & mask);
    }
}

template <Rounding R, bool ASYM>
void integers_to_values(const Element& e, const float* y, const float* z, const float* u, int64_t n,
                        float* __restrict values) {
    IntegerLimits limits{e.low, e.high};
    for (int64_t i = 0; i < n; ++i)  // + 0: codes have no -0
        values[i] = 0.0f + integer_steps<R, ASYM>(limits, y[i], ASYM ? z[i] : 0.0f,
                                                  R == Rounding::stochastic ? u[i] : 0.0f);
}

// What the loops over minifloats need of the element.
struct MinifloatLimits {
    explicit MinifloatLimits(const Element& e)
        : high(e.high), lowest((1 - e.bias + 127) << 23), shift(23 - e.mantissa_bits),
          magic((shift << 23) | 0x400000), sign_shift(32 - e.bits), sign_mask(1 << (e.bits - 1)),
          nan(e.nan_code) {}

    float high;
    int32_t lowest;     // the exponent field of the smallest normal number, in place
    int shift;          // from float32's mantissa to the element's
    int32_t magic;      // added to a binade's exponent field: 1.5 * 2^23 of the steps within it
    int sign_shift;
    uint32_t sign_mask;
    int nan;
};

// |y| (finite) -> the exponent field of its binade and its whole number of steps there.
template <Rounding R>
inline void minifloat_steps(const MinifloatLimits& m, float y, float u, int32_t* binade,
                            int32_t* steps, float* value) {
    float size = from_bits(to_bits(y) & 0x7FFFFFFF);
    size = size < m.high ? size : m.high;
    int32_t field = to_bits(size) & kInfinity;
    field = field > m.lowest ? field : m.lowest;
    *binade = field;
    if constexpr (R == Rounding::nearest_even) {
        // 1.5 * 2^23 steps: the sum is rounded to whole steps, and its bits count them.
        float magic = from_bits(field + m.magic), sum = size + magic;
        *steps = to_bits(sum) - to_bits(magic);
        *value = sum - magic;
    } else {
        // Times a power of two, exact: both are in range for every element of the grammar.
        int32_t mantissa = 23 - m.shift;
        float t = size * from_bits(static_cast<int32_t>(((254u + mantissa) << 23) - field));
        t = from_bits(to_bits(t) | (to_bits(y) & INT32_MIN));
        float whole = from_bits(to_bits(round_steps<R>(t, u)) & 0x7FFFFFFF);
        *steps = static_cast<int32_t>(whole);
        float step = from_bits(field);  // of the binade, times 2^mantissa
        *value = whole * from_bits((127 - mantissa) << 23) * step;
    }
}

template <Rounding R>
void minifloats_to_codes(const Element& e, const float* y, const float* u, int64_t n,
                         uint8_t* __restrict codes) {
    MinifloatLimits m(e);
    int32_t nan = m.nan < 0 ? 0 : m.nan;
    for (int64_t i = 0; i < n; ++i) {
        int32_t binade, steps;
        float value;
        minifloat_steps<R>(m, y[i], R == Rounding::stochastic ? u[i] : 0.0f, &binade, &steps,
                           &value);
        int32_t code = steps + ((binade - m.lowest) >> m.shift);
        code |= (static_cast<uint32_t>(to_bits(y[i])) >> m.sign_shift) & m.sign_mask;
        codes[i] = static_cast<uint8_t>(y[i] == y[i] ? code : nan);
    }
}

template <Rounding R>
void minifloats_to_values(const Element& e, const float* y, const float* u, int64_t n,
                          float* __restrict values) {
    MinifloatLimits m(e);
    float nan = m.nan < 0 ? 0.0f : from_bits(0x7FC00000);
    for (int64_t i = 0; i < n; ++i) {
        int32_t binade, steps;
        float value;
        minifloat_steps<R>(m, y[i], R == Rounding::stochastic ? u[i] : 0.0f, &binade, &steps,
                           &value);
        value = from_bits(to_bits(value) | (to_bits(y[i]) & INT32_MIN));
        values[i] = y[i] == y[i] ? value : nan;
    }
}

inline void signs_to_codes(const float* y, int64_t n, uint8_t* __restrict codes) {
    for (int64_t i = 0; i < n; ++i) codes[i] = y[i] < 0.0f ? 0 : 1;
}

inline void signs_to_values(const float* y, int64_t n, float* __restrict values) {
    for (int64_t i = 0; i < n; ++i) values[i] = y[i] < 0.0f ? -1.0f : 1.0f;
}

// How many of a codebook's thresholds are below each y [n].
inline void ranks_of(const Codebook& book, const float* y, int64_t n, int32_t* __restrict ranks) {
    const int32_t* thresholds = book.thresholds;
    for (int64_t i = 0; i < n; ++i) {
        int32_t value = ordered(to_bits(y[i] == y[i] ? y[i] : 0.0f)), rank = 0;
#pragma GCC unroll 15
        for (int j = 0; j < 15; ++j) rank += value > thresholds[j] ? 1 : 0;
        ranks[i] = rank;
    }
    for (int step = 4; step < book.steps; ++step) {
        const int32_t* middle = thresholds + (1 << step);
        for (int64_t i = 0; i < n; ++i) {
            int32_t value = ordered(to_bits(y[i] == y[i] ? y[i] : 0.0f)), rank = ranks[i];
            ranks[i] = 2 * rank + (value > middle[rank] ? 1 : 0);
        }
    }
}

inline void places_to_codes(const Codebook& book, const float* y, int64_t n,
                            uint8_t* __restrict codes) {
    if (book.octaves.serve) return octaves_to_codes(book.octaves, y, n, codes);
    alignas(64) int32_t ranks[kChunk];
    ranks_of(book, y, n, ranks);
    for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(book.codes[ranks[i]]);
}

inline void places_to_values(const Codebook& book, const float* y, int64_t n,
                             float* __restrict values) {
    if (book.octaves.serve) return octaves_to_values(book.octaves, y, n, values);
    alignas(64) int32_t ranks[kChunk];
    ranks_of(book, y, n, ranks);
    for (int64_t i = 0; i < n; ++i) values[i] = book.ranked[ranks[i]];
}

// Run `body` with the rounding as a constant.
template <class Body>
inline void with_rounding(Rounding rounding, Body body) {
    switch (rounding) {
        case Rounding::nearest_even: return body.template operator()<Rounding::nearest_even>();
        case Rounding::nearest_away: return body.template operator()<Rounding::nearest_away>();
        case Rounding::toward_zero: return body.template operator()<Rounding::toward_zero>();
        case Rounding::down: return body.template operator()<Rounding::down>();
        case Rounding::up: return body.template operator()<Rounding::up>();
        case Rounding::stochastic: return body.template operator()<Rounding::stochastic>();
    }
}

// Whether zero points are added to codes after rounding: those that are no integers are in y before.
inline bool adds_zeros(const Spec& spec) { return spec.asym && spec.zero == Stored::none; }

// y [n] in steps, n <= kChunk -> patterns [n] of spec.code_bytes(); z: zero points if asym; u: if stochastic.
inline void encode(const Spec& spec, const float* y, const float* z, const float* u, int64_t n,
                   void* codes) {
    const Element& e = spec.element;
    uint8_t* bytes = static_cast<uint8_t*>(codes);
    uint16_t* words = static_cast<uint16_t*>(codes);
    switch (e.family) {
        case Family::binary: return signs_to_codes(y, n, bytes);
        case Family::codebook: return places_to_codes(*e.book, y, n, bytes);
        case Family::minifloat:
            return with_rounding(spec.rounding, [&]<Rounding R>() {
                minifloats_to_codes<R>(e, y, u, n, bytes);
            });
        case Family::integer:
            return with_rounding(spec.rounding, [&]<Rounding R>() {
                if (e.bits <= 8) {
                    adds_zeros(spec) ? integers_to_codes<R, true>(e, y, z, u, n, bytes)
                                     : integers_to_codes<R, false>(e, y, z, u, n, bytes);
                } else {
                    adds_zeros(spec) ? integers_to_codes<R, true>(e, y, z, u, n, words)
                                     : integers_to_codes<R, false>(e, y, z, u, n, words);
                }
            });
    }
}

// The same, but the values of the codes less the zero point, in units of the step.
inline void snap(const Spec& spec, const float* y, const float* z, const float* u, int64_t n,
                 float* values) {
    const Element& e = spec.element;
    switch (e.family) {
        case Family::binary: return signs_to_values(y, n, values);
        case Family::codebook: return places_to_values(*e.book, y, n, values);
        case Family::minifloat:
            return with_rounding(spec.rounding, [&]<Rounding R>() {
                minifloats_to_values<R>(e, y, u, n, values);
            });
        case Family::integer:
            with_rounding(spec.rounding, [&]<Rounding R>() {
                adds_zeros(spec) ? integers_to_values<R, true>(e, y, z, u, n, values)
                                 : integers_to_values<R, false>(e, y, z, u, n, values);
            });
            for (int64_t i = 0; spec.asym && !adds_zeros(spec) && i < n; ++i) values[i] -= z[i];
            return;
    }
}

template <Rounding R, bool ASYM>
void integers_in_range(const Element& e, const float* y, const float* z, int64_t n,
                       int32_t* __restrict inside) {
    for (int64_t i = 0; i < n; ++i) {
        float low = ASYM ? e.low - z[i] : e.low, high = ASYM ? e.high - z[i] : e.high;
        float t = y[i] > low - 1.0f ? y[i] : low - 1.0f;  // |t| stays small, and out is still out
        t = t < high + 1.0f ? t : high + 1.0f;
        float steps = round_steps<R>(t, 0.0f);
        inside[i] = (steps >= low) & (steps <= high) & (y[i] == y[i]);
    }
}

template <Rounding R>
void minifloats_in_range(const Element& e, const float* y, int64_t n, int32_t* __restrict inside) {
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

// y [n] in steps -> 1 where encoding it does not saturate, else 0: as wide as y, so that all compilers make
// vectors of it. Stochastic rounding counts as nearest even, so that the mask does not depend on the draw.
inline void in_range(const Spec& spec, const float* y, const float* z, int64_t n, int32_t* inside) {
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
