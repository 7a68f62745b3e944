// SPDX-License-Identifier: BSD-3-Clause
// Numerators -> stored scales -> steps (numerics.md, 3.3 to 3.6 and 1.3). Loops over neighbouring
// blocks, because a block of 16 elements cannot pay for a scalar chain of its own.
#pragma once

#include "../simd/vector.h"
#include "blocks.h"

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
    if (spec.full) {
        for (int64_t i = 0; i < n; ++i) {
            float up = high[i] / spec.element.high, down = low[i] / spec.element.low;
            raw[i] = up > down ? up : down;
        }
    } else {
        for (int64_t i = 0; i < n; ++i) raw[i] = high[i] / spec.levels;
    }
}

// The step's exponent (section 3.4) and whether the block counts as zero.
inline int32_t exponent_of(const Spec& spec, float a, bool* zero) {
    bool nearest = spec.nearest;
    float value = nearest ? a / spec.levels : a;
    *zero = !(value > 0.0f);
    int32_t exponent, fraction;
    split(*zero ? 1.0f : value, &exponent, &fraction);
    int32_t threshold = nearest ? 0x3504F4 : spec.threshold;
    return exponent - (nearest ? 0 : spec.emax) + (fraction >= threshold ? 1 : 0);
}

#if defined(__AVX512BW__)
// exponent_of for 16 blocks. Loops over few blocks do not fill the vectors that a compiler makes of them,
// and a unit that fits L1 has few.
BLOCKSCALE_INLINE __m512i exponents16(const Spec& spec, __m512 a, __mmask16* zero) {
    bool nearest = spec.nearest;
    __m512 value = nearest ? _mm512_div_ps(a, _mm512_set1_ps(spec.levels)) : a;
    *zero = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_NGT_UQ);
    value = _mm512_mask_mov_ps(value, *zero, _mm512_set1_ps(1.0f));
    __mmask16 subnormal = _mm512_cmp_ps_mask(value, _mm512_set1_ps(kFltMin), _CMP_LT_OQ);
    value = _mm512_mask_mul_ps(value, subnormal, value, _mm512_set1_ps(16777216.0f));
    __m512i bits = _mm512_castps_si512(value), exponent = _mm512_srli_epi32(bits, 23);
    exponent = _mm512_mask_sub_epi32(exponent, subnormal, exponent, _mm512_set1_epi32(24));
    __m512i fraction = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFF));
    __m512i threshold = _mm512_set1_epi32(nearest ? 0x3504F4 : spec.threshold);
    __mmask16 up = _mm512_cmpge_epi32_mask(fraction, threshold);
    exponent = _mm512_mask_add_epi32(exponent, up, exponent, _mm512_set1_epi32(1));
    return _mm512_sub_epi32(exponent, _mm512_set1_epi32(127 + (nearest ? 0 : spec.emax)));
}

BLOCKSCALE_INLINE __m512i within(__m512i x, int32_t low, int32_t high) {
    return _mm512_min_epi32(_mm512_max_epi32(x, _mm512_set1_epi32(low)), _mm512_set1_epi32(high));
}

BLOCKSCALE_INLINE __m128i load_bytes(const uint8_t* from, __mmask16 mask) {
    return mask == 0xFFFF ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))
                          : _mm_maskz_loadu_epi8(mask, from);
}

// The powers of two of n neighbouring blocks, as floats.
inline void store_powers(const Spec& spec, const float* a, int64_t n, float* stored) {
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_of(n - i), zero;
        __m512i power = within(exponents16(spec, load_floats(a + i, lanes), &zero), -126, 127);
        power = _mm512_mask_mov_epi32(power, zero, _mm512_set1_epi32(-126));
        power = _mm512_slli_epi32(_mm512_add_epi32(power, _mm512_set1_epi32(127)), 23);
        store16<Dtype::fp32>(stored, i, lanes, _mm512_castsi512_ps(power));
    }
}

// The same, as bytes.
inline void store_power_bytes(const Spec& spec, const float* a, const uint8_t* odd, int64_t n,
                              uint8_t* stored) {
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_of(n - i), zero;
        __m512i power = exponents16(spec, load_floats(a + i, lanes), &zero);
        power = within(_mm512_add_epi32(power, _mm512_set1_epi32(spec.fraction_bits)), -127, 127);
        power = _mm512_mask_mov_epi32(power, zero, _mm512_set1_epi32(-127));
        __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(power, _mm512_set1_epi32(127)));
        __m128i found = load_bytes(odd + i, lanes);
        bytes = _mm_mask_mov_epi8(bytes, _mm_test_epi8_mask(found, found), _mm_set1_epi8(-1));
        if (lanes == 0xFFFF) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(stored + i), bytes);
        } else {
            _mm_mask_storeu_epi8(stored + i, lanes, bytes);
        }
    }
}

// Such bytes -> steps.
inline void load_power_bytes(const uint8_t* bytes, int fraction_bits, int64_t n, float* steps) {
    const __m512i one = _mm512_set1_epi32(1), nan = _mm512_set1_epi32(0x7FC00000);
    for (int64_t i = 0; i < n; i += 16) {
        __m512i byte = _mm512_cvtepu8_epi32(load_bytes(bytes + i, lanes_of(n - i)));
        __m512i field = _mm512_sub_epi32(byte, _mm512_set1_epi32(fraction_bits));
        __m512i below = _mm512_sub_epi32(_mm512_setzero_si512(), field);
        __m512i bits = _mm512_slli_epi32(field, 23);
        __mmask16 subnormal = _mm512_cmplt_epi32_mask(field, one);
        bits = _mm512_mask_srlv_epi32(bits, subnormal, _mm512_set1_epi32(0x400000), below);
        bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(255)), nan);
        store16<Dtype::fp32>(steps, i, lanes_of(n - i), _mm512_castsi512_ps(bits));
    }
}

// Inverses of n steps; whether all are exact.
inline bool invert(const float* steps, int64_t n, float* inverses) {
    __mmask16 beyond = 0;
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_of(n - i);
        __m512 step = load_floats(steps + i, lanes), inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), step);
        __m512i fraction = _mm512_and_si512(_mm512_castps_si512(step), _mm512_set1_epi32(0x7FFFFF));
        beyond |= lanes & _mm512_test_epi32_mask(fraction, fraction);
        beyond |= lanes & _mm512_cmpeq_epi32_mask(_mm512_castps_si512(_mm512_abs_ps(inverse)),
                                                  _mm512_set1_epi32(kInfinity));
        store16<Dtype::fp32>(inverses, i, lanes, inverse);
    }
    return beyond == 0;
}
#else
// The powers of two of n neighbouring blocks, as floats.
inline void store_powers(const Spec& spec, const float* a, int64_t n, float* stored) {
    for (int64_t i = 0; i < n; ++i) {
        bool zero;
        int32_t power = exponent_of(spec, a[i], &zero);
        power = zero || power < -126 ? -126 : power > 127 ? 127 : power;
        stored[i] = pow2(power);
    }
}

// The same, as bytes.
inline void store_power_bytes(const Spec& spec, const float* a, const uint8_t* odd, int64_t n,
                              uint8_t* stored) {
    for (int64_t i = 0; i < n; ++i) {
        bool zero;
        int32_t power = exponent_of(spec, a[i], &zero) + spec.fraction_bits;
        power = power < -127 ? -127 : power > 127 ? 127 : power;
        int32_t byte = zero ? 0 : power + 127;
        stored[i] = static_cast<uint8_t>(odd[i] ? 255 : byte);
    }
}

// Such bytes -> steps.
inline void load_power_bytes(const uint8_t* bytes, int32_t fraction_bits, int64_t n,
                             float* __restrict steps) {
    for (int64_t i = 0; i < n; ++i) {  // pow2(bytes[i] - 127 - fraction_bits), in few steps
        int32_t byte = bytes[i], field = byte - fraction_bits;
        int32_t below = field < 0 ? -field : 0;
        int32_t bits = field > 0 ? field << 23 : 0x400000 >> below;
        steps[i] = from_bits(byte == 255 ? 0x7FC00000 : bits);
    }
}

// Inverses of n steps; whether all are exact.
inline bool invert(const float* steps, int64_t n, float* __restrict inverses) {
    int32_t beyond = 0;
    for (int64_t i = 0; i < n; ++i) {
        inverses[i] = 1.0f / steps[i];
        beyond |= (to_bits(inverses[i]) & INT32_MAX) == kInfinity || (to_bits(steps[i]) & 0x7FFFFF);
    }
    return !beyond;
}
#endif

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
            case ScaleKind::pow2: store_powers(spec, a, count, singles + from); break;
            case ScaleKind::e8m0:
                store_power_bytes(spec, a, odd + from, count, bytes + from);
                break;
            case ScaleKind::two_level: break;  // its inner codes need all scales: store_two_levels
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
        case ScaleKind::e8m0:
            load_power_bytes(static_cast<const uint8_t*>(stored) + first, spec.fraction_bits, n, steps);
            break;
        case ScaleKind::two_level: break;
    }
}

// n numbers, none of them NaN, in the type they are stored as, at most its largest number in magnitude.
// `found` is overwritten.
inline void store_as(Stored kind, float* found, int64_t n, void* stored, int64_t first) {
    float* singles = static_cast<float*>(stored) + first;
    uint16_t* halves = static_cast<uint16_t*>(stored) + first;
    float most = kind == Stored::fp16 ? 65504.0f : kind == Stored::bf16 ? from_bits(0x7F7F0000) : kFltMax;
    for (int64_t i = 0; i < n; ++i) found[i] = clamp(found[i], -most, most);
    switch (kind) {
        case Stored::none: return;
        case Stored::fp32: memcpy(singles, found, n * sizeof(float)); return;
        case Stored::fp16: narrow(found, Dtype::fp16, n, halves); return;
        case Stored::bf16: narrow(found, Dtype::bf16, n, halves); return;
    }
}

// Zero points of n blocks (section 3.6).
inline void store_zero_points(const Spec& spec, const float* low, const float* steps, int64_t n,
                              void* stored, int64_t first) {
    const Element& e = spec.element;
    if (spec.zero != Stored::none) {
        alignas(64) float found[256];
        for (int64_t from = 0; from < n; from += 256) {
            int64_t count = smaller(256, n - from);
            for (int64_t i = 0; i < count; ++i) {
                float zero = e.low - low[from + i] / steps[from + i];
                found[i] = zero == zero ? zero : 0.0f;
            }
            store_as(spec.zero, found, count, stored, first + from);
        }
        return;
    }
    int32_t* __restrict zero_points = static_cast<int32_t*>(stored) + first;
    for (int64_t i = 0; i < n; ++i) {
        float t = low[i] / steps[i];
        // Beyond every limit, but within what adding kMagic rounds.
        float bounded = clamp(t == t ? t : 0.0f, -262144.0f, 262144.0f);
        float zero = e.low - ((bounded + kMagic) - kMagic);
        zero_points[i] = static_cast<int32_t>(clamp(t == t ? zero : 0.0f, e.low, e.high));
    }
}

// Offsets of n blocks (section 3.8). -0 becomes 0: which zero is the smallest value of a block would
// depend on their order.
inline void store_offsets(const Spec& spec, const float* low, const float* steps, int64_t n,
                          void* stored, int64_t first) {
    alignas(64) float found[256];
    for (int64_t from = 0; from < n; from += 256) {
        int64_t count = smaller(256, n - from);
        for (int64_t i = 0; i < count; ++i) {
            float offset = low[from + i] - steps[from + i] * spec.element.low + 0.0f;
            found[i] = offset == offset ? offset : 0.0f;
        }
        store_as(spec.offset, found, count, stored, first + from);
    }
}

// Numbers stored as `kind` says, as float32.
inline void load_stored(Stored kind, const void* stored, int64_t first, int64_t n, float* found) {
    switch (kind) {
        case Stored::none: return;
        case Stored::fp32:
            memcpy(found, static_cast<const float*>(stored) + first, n * sizeof(float));
            return;
        case Stored::fp16: widen(stored, Dtype::fp16, first, n, found); return;
        case Stored::bf16: widen(stored, Dtype::bf16, first, n, found); return;
    }
}

// Stored offsets as float32.
inline void load_offsets(const Spec& spec, const void* stored, int64_t first, int64_t n,
                         float* offsets) {
    load_stored(spec.offset, stored, first, n, offsets);
}

// Stored zero points, of a format that has them, as float32.
inline void load_zero_points(const Spec& spec, const void* stored, int64_t first, int64_t n,
                             float* __restrict zero_points) {
    load_stored(spec.zero, stored, first, n, zero_points);
    const int32_t* whole = static_cast<const int32_t*>(stored);
    if (spec.zero == Stored::none)
        for (int64_t i = 0; i < n; ++i) zero_points[i] = static_cast<float>(whole[first + i]);
}

// The reciprocal of a step or less, finite.
inline float bounded(float inverse) {
    inverse = inverse > kFltMax ? kFltMax : inverse;  // NaN stays
    return inverse < -kFltMax ? -kFltMax : inverse;
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
        for (int64_t i = 0; i < n; ++i) buffer[i] = bounded(1.0f / steps[i]);
        return {buffer, true};
    }
    if (spec.scale != ScaleKind::e8m0 && spec.scale != ScaleKind::pow2) return {steps, false};
    return invert(steps, n, buffer) ? Factors{buffer, true} : Factors{steps, false};
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
