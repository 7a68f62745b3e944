// Numerators -> stored scales -> steps (numerics.md, 3.3 to 3.6 and 1.3). Loops over neighbouring
// blocks, because a block of 16 elements cannot pay for a scalar chain of its own.
#pragma once

#include "floats.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// The float32 2^n for n in -149 ... 127.
inline float pow2(int32_t n) {
    int32_t normal = ((n > -126 ? n : -126) + 127) << 23;
    int32_t below = n < -127 ? n : -127;
    int32_t subnormal = 1 << ((below > -149 ? below : -149) + 149);
    return from_bits(n >= -126 ? normal : subnormal);
}

// The exponent and the fraction of a > 0, also where a is subnormal.
inline void split(float a, int32_t* exponent, int32_t* fraction) {
    bool subnormal = a < kFltMin;
    int32_t bits = to_bits(subnormal ? a * 16777216.0f : a);
    *exponent = (bits >> 23) - 127 - (subnormal ? 24 : 0);
    *fraction = bits & 0x7FFFFF;
}

inline float clamp(float value, float low, float high) {
    value = value > low ? value : low;
    return value < high ? value : high;
}

// a / L of each block; `full` ranges have a divisor for either side (section 3.1).
inline void quotients(const Spec& spec, const float* low, const float* high, int64_t n,
                      float* __restrict raw) {
    if (spec.full_high != 0.0f) {
        for (int64_t i = 0; i < n; ++i) {
            float up = high[i] / spec.full_high, down = low[i] / spec.full_low;
            raw[i] = up > down ? up : down;
        }
    } else {
        for (int64_t i = 0; i < n; ++i) raw[i] = high[i] / spec.levels;
    }
}

// The step's exponent (section 3.4) and whether the block counts as zero.
inline int32_t exponent_of(const Spec& spec, float a, bool* zero) {
    bool nearest = spec.rule == Rule::nearest;
    float value = nearest ? a / spec.levels : a;
    *zero = !(value > 0.0f);
    int32_t exponent, fraction;
    split(*zero ? 1.0f : value, &exponent, &fraction);
    int32_t threshold = nearest ? 0x3504F4 : spec.threshold;
    return exponent - (nearest ? 0 : spec.emax) + (fraction >= threshold ? 1 : 0);
}

// What is stored for n neighbouring blocks whose numerators are `high` (`low`: the other end of a
// `full` range). odd: the block holds a NaN or an infinity.
inline void store_scales(const Spec& spec, const float* low, const float* high, const uint8_t* odd,
                         int64_t n, void* stored, int64_t first) {
    float raw[256];
    float* singles = static_cast<float*>(stored) + first;
    uint16_t* halves = static_cast<uint16_t*>(stored) + first;
    uint8_t* bytes = static_cast<uint8_t*>(stored) + first;
    for (int64_t from = 0; from < n; from += 256) {
        int64_t count = smaller(256, n - from);
        const float* a = high + from;
        switch (spec.scale) {
            case ScaleKind::fp32:
                quotients(spec, low + from, a, count, raw);
                for (int64_t i = 0; i < count; ++i)
                    singles[from + i] = clamp(raw[i], kFltMin, kFltMax);
                break;
            case ScaleKind::fp16:
                quotients(spec, low + from, a, count, raw);
                for (int64_t i = 0; i < count; ++i)
                    halves[from + i] = to_half(clamp(from_half(to_half(raw[i])), 0x1p-24f, 65504.0f));
                break;
            case ScaleKind::bf16:
                quotients(spec, low + from, a, count, raw);
                for (int64_t i = 0; i < count; ++i) {
                    float value = from_bits(static_cast<uint32_t>(to_bfloat(raw[i])) << 16);
                    halves[from + i] = to_bfloat(clamp(value, kFltMin, from_bits(0x7F7F0000)));
                }
                break;
            case ScaleKind::pow2:
                for (int64_t i = 0; i < count; ++i) {
                    bool zero;
                    int32_t power = exponent_of(spec, a[i], &zero);
                    power = zero || power < -126 ? -126 : power > 127 ? 127 : power;
                    singles[from + i] = pow2(power);
                }
                break;
            case ScaleKind::e8m0:
                for (int64_t i = 0; i < count; ++i) {
                    bool zero;
                    int32_t power = exponent_of(spec, a[i], &zero) + spec.fraction_bits;
                    power = power < -127 ? -127 : power > 127 ? 127 : power;
                    int32_t byte = zero ? 0 : power + 127;
                    bytes[from + i] = static_cast<uint8_t>(odd[from + i] ? 255 : byte);
                }
                break;
            case ScaleKind::two_level: break;  // its inner codes need the whole tensor: two_level.h
        }
    }
}

// Stored scales of one level -> steps.
inline void load_steps(const Spec& spec, const void* stored, int64_t first, int64_t n,
                       float* __restrict steps) {
    switch (spec.scale) {
        case ScaleKind::fp32:
        case ScaleKind::pow2:
            memcpy(steps, static_cast<const float*>(stored) + first, n * sizeof(float));
            break;
        case ScaleKind::fp16:
            widen(stored, Dtype::fp16, first, n, steps);
            break;
        case ScaleKind::bf16:
            widen(stored, Dtype::bf16, first, n, steps);
            break;
        case ScaleKind::e8m0: {
            const uint8_t* bytes = static_cast<const uint8_t*>(stored) + first;
            int32_t fraction_bits = spec.fraction_bits;
            for (int64_t i = 0; i < n; ++i) {  // pow2(bytes[i] - 127 - fraction_bits), in few steps
                int32_t byte = bytes[i], field = byte - fraction_bits;
                int32_t below = field < 0 ? -field : 0;
                int32_t bits = field > 0 ? field << 23 : 0x400000 >> below;
                steps[i] = from_bits(byte == 255 ? 0x7FC00000 : bits);
            }
            break;
        }
        case ScaleKind::two_level: break;
    }
}

// Zero points of n blocks (section 3.6).
inline void store_zero_points(const Spec& spec, const float* low, const float* steps, int64_t n,
                              int32_t* __restrict zero_points) {
    const Element& e = spec.element;
    for (int64_t i = 0; i < n; ++i) {
        float t = low[i] / steps[i];
        // Beyond every limit, but within what adding kMagic rounds.
        float bounded = clamp(t == t ? t : 0.0f, -262144.0f, 262144.0f);
        float zero = e.low - ((bounded + kMagic) - kMagic);
        zero_points[i] = static_cast<int32_t>(clamp(t == t ? zero : 0.0f, e.low, e.high));
    }
}

// How x becomes y: divided by `by`, or multiplied by it where that gives the same bits.
struct Factors {
    float* by;
    bool multiply;
};

// Steps [n] -> factors: the exact inverses of powers of two, if all are normal ones (a given `pow2`
// scale need not be one) whose inverse float32 has.
inline Factors factors_of(const Spec& spec, float* steps, int64_t n, float* buffer) {
    if (spec.recip) {
        for (int64_t i = 0; i < n; ++i) {
            float inverse = 1.0f / steps[i];
            buffer[i] = inverse > kFltMax ? kFltMax : inverse;
        }
        return {buffer, true};
    }
    if (spec.scale != ScaleKind::e8m0 && spec.scale != ScaleKind::pow2) return {steps, false};
    int32_t beyond = 0;
    for (int64_t i = 0; i < n; ++i) {
        buffer[i] = 1.0f / steps[i];
        beyond |= to_bits(buffer[i]) == kInfinity || (to_bits(steps[i]) & 0x7FFFFF);
    }
    return beyond ? Factors{steps, false} : Factors{buffer, true};
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
