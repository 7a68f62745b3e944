// SPDX-License-Identifier: BSD-3-Clause
// What the fused loops of wide.h make of numbers in steps, for each family: the codes of 64 of them or
// of 16, or the values of those codes.
#pragma once

#include "../simd/table.h"
#include "encode.h"
#include "wide.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// 4 x 16 dwords, each the four bytes of one 128-bit lane -> the same in the order of the elements.
BLOCKSCALE_INLINE __m512i in_order(__m512i lanes) {
    const __m512i from =
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(from, lanes);
}

// How zero points enter: not at all, added to codes, or to numbers before rounding, since they are no
// integers; NaN then counts as 0.
enum class Zeros { none, added, moved };

template <Zeros Z>
struct WideIntegers {
    template <Dtype>
    static constexpr bool kOfWords = false;
    static constexpr bool kDraws = true;  // may round by chance
    static constexpr bool kAdds = Z == Zeros::added;

    explicit WideIntegers(const Spec& spec)
        : low(_mm512_set1_ps(spec.element.low)), high(_mm512_set1_ps(spec.element.high)),
          mask(_mm512_set1_epi32((1 << spec.element.bits) - 1)), magic(_mm512_set1_ps(kMagic)),
          byte_low(_mm512_set1_epi8(static_cast<char>(static_cast<int>(spec.element.low)))),
          byte_high(_mm512_set1_epi8(static_cast<char>(static_cast<int>(spec.element.high)))),
          byte_mask(_mm512_set1_epi8(static_cast<char>((1 << spec.element.bits) - 1))),
          is_signed(spec.element.is_signed) {}

    // NaN to 0; and zero points that are added before rounding.
    static BLOCKSCALE_INLINE __m512 number(__m512 y, __m512 zero) {
        const __m512i nan_to_zero = _mm512_set1_epi32(0x11111188);
        y = _mm512_fixupimm_ps(y, y, nan_to_zero, 0);
        if constexpr (Z == Zeros::moved)
            y = _mm512_fixupimm_ps(y, _mm512_add_ps(y, zero), nan_to_zero, 0);
        return y;
    }

    // 1.5 * 2^23 + the whole steps, whose low bits are the steps.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 sum(__m512 y, const Lanes& lanes, __m512 u) const {
        y = number(y, lanes.zero);
        __m512 below = low, above = high;
        if constexpr (kAdds) {
            below = _mm512_sub_ps(low, lanes.zero);
            above = _mm512_sub_ps(high, lanes.zero);
        }
        __m512 t = _mm512_min_ps(_mm512_max_ps(y, below), above);
        if constexpr (DRAWN) t = with_sign_of(by_chance(_mm512_abs_ps(t), u), t);
        return _mm512_add_ps(t, magic);
    }

    // 64 codes as bytes. Packing saturates: all that is needed before is that the conversion does not
    // overflow.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512* zero, const __m512* u) const {
        __m512i steps[4];
        for (int j = 0; j < 4; ++j) {
            __m512 t = number(y[j], zero[j]);
            if constexpr (DRAWN) t = with_sign_of(by_chance(_mm512_abs_ps(t), u[j]), t);
            t = _mm512_range_ps(t, _mm512_set1_ps(0x1p20f), 0b0010);  // the smaller magnitude, t's sign
            steps[j] = _mm512_cvtps_epi32(t);
            if constexpr (kAdds) steps[j] = _mm512_add_epi32(steps[j], _mm512_cvtps_epi32(zero[j]));
        }
        __m512i front = _mm512_packs_epi32(steps[0], steps[1]);
        __m512i back = _mm512_packs_epi32(steps[2], steps[3]);
        __m512i code = in_order(is_signed ? _mm512_packs_epi16(front, back)
                                          : _mm512_packus_epi16(front, back));
        if (is_signed) {
            code = _mm512_max_epi8(_mm512_min_epi8(code, byte_high), byte_low);
        } else {
            code = _mm512_min_epu8(code, byte_high);
        }
        return _mm512_and_si512(code, byte_mask);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes& lanes, __m512 u) const {
        __m512 steps = sum<DRAWN>(y, lanes, u);
        if constexpr (kAdds) steps = _mm512_add_ps(steps, lanes.zero);
        return _mm512_and_si512(_mm512_castps_si512(steps), mask);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes& lanes, __m512 u) const {
        __m512 steps = _mm512_sub_ps(sum<DRAWN>(y, lanes, u), magic);
        if constexpr (Z == Zeros::moved) return _mm512_sub_ps(steps, lanes.zero);
        return steps;
    }

    __m512 low, high;
    __m512i mask;
    __m512 magic;
    __m512i byte_low, byte_high, byte_mask;  // of elements up to 8 bits
    bool is_signed;
};

// See MinifloatLimits in encode.h for the idea.
struct WideMinifloats {
    template <Dtype>
    static constexpr bool kOfWords = false;
    static constexpr bool kDraws = true;  // may round by chance

    // finite: there is no NaN among the numbers to come.
    WideMinifloats(const Spec& spec, bool finite) : finite(finite) {
        const Element& e = spec.element;
        mantissa_free = e.mantissa_bits == 0;
        int shift = 23 - e.mantissa_bits;
        int32_t smallest = (1 - e.bias + 127) << 23;
        largest = _mm512_set1_ps(e.high);
        lowest = _mm512_set1_epi32(smallest);
        magic = _mm512_set1_epi32((shift << 23) | 0x400000);
        right = _mm_cvtsi32_si128(shift);
        // The field of the smallest normal number counts as 0 steps: taken off within `counting`, as
        // an even number of them, so that ties still go to even.
        int32_t fields = smallest >> shift, odd = fields & 1;
        rebias = _mm512_set1_epi32(fields);
        counting = _mm512_add_epi32(magic, _mm512_set1_epi32(-(fields - odd) & 0xFF));
        one_more = _mm512_set1_epi32(odd);
        sign_right = _mm_cvtsi32_si128(32 - e.bits);
        sign = _mm512_set1_epi32(1 << (e.bits - 1));
        nan_code = _mm512_set1_epi32(e.nan_code < 0 ? 0 : e.nan_code);
        nan = _mm512_set1_ps(e.nan_code < 0 ? 0.0f : from_bits(0x7FC00000));
        nan_byte = _mm512_set1_epi8(static_cast<char>(e.nan_code < 0 ? 0 : e.nan_code));
        magnitude = _mm512_set1_epi16(static_cast<int16_t>((1 << (e.bits - 1)) - 1));
        word_right = _mm_cvtsi32_si128(16 - e.bits);
        alignas(64) int16_t word[32];
        for (int i = 0; i < 32; ++i) word[i] = static_cast<int16_t>(2 * i);
        even_words = _mm512_load_si512(word);
        odd_words = _mm512_add_epi16(even_words, _mm512_set1_epi16(1));
        to_mantissa = _mm512_set1_epi32(
            static_cast<int32_t>((254u + e.mantissa_bits) << 23));
        from_mantissa = _mm512_set1_ps(from_bits((127 - e.mantissa_bits) << 23));
    }

    BLOCKSCALE_INLINE __m512i field(__m512 size) const {
        __m512i bits = _mm512_castps_si512(size);
        return _mm512_max_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(kInfinity)), lowest);
    }

    // The smaller of |y| and the largest value; NaN gives the latter.
    BLOCKSCALE_INLINE __m512 size(__m512 y) const { return _mm512_range_ps(y, largest, 0b1010); }

    // The magnitude's code in the low byte of each lane, whatever is above it.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i magnitudes(__m512 y, __m512 u) const {
        __m512 a = size(y);
        __m512i binade = field(a), steps;
        if constexpr (DRAWN) {
            __m512i inverse = _mm512_sub_epi32(to_mantissa, binade);
            steps = _mm512_cvttps_epi32(
                by_chance(_mm512_mul_ps(a, _mm512_castsi512_ps(inverse)), u));
            steps = _mm512_sub_epi32(steps, rebias);
        } else {  // in the low byte; what is above it is cut off
            __m512i big = _mm512_add_epi32(binade, counting);
            steps = _mm512_castps_si512(_mm512_add_ps(a, _mm512_castsi512_ps(big)));
            if (mantissa_free) steps = _mm512_sub_epi32(steps, one_more);
        }
        return _mm512_add_epi32(steps, _mm512_srl_epi32(binade, right));
    }

    // 64 codes as bytes.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512* u) const {
        __m512i half[2];
        for (int j = 0; j < 4; j += 2) {
            __m512i low = _mm512_permutex2var_epi16(magnitudes<DRAWN>(y[j], u[j]), even_words,
                                                    magnitudes<DRAWN>(y[j + 1], u[j + 1]));
            __m512i sign = _mm512_permutex2var_epi16(_mm512_castps_si512(y[j]), odd_words,
                                                     _mm512_castps_si512(y[j + 1]));
            sign = _mm512_srl_epi16(sign, word_right);
            half[j / 2] = _mm512_ternarylogic_epi32(magnitude, low, sign, 0xCA);  // magnitude ? low : sign
        }
        __m512i code = _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0),
                                                _mm512_packus_epi16(half[0], half[1]));
        if (finite) return code;
        __mmask16 odd[4];
        for (int j = 0; j < 4; ++j) odd[j] = _mm512_cmp_ps_mask(y[j], y[j], _CMP_UNORD_Q);
        __mmask32 front = _mm512_kunpackw(odd[1], odd[0]), back = _mm512_kunpackw(odd[3], odd[2]);
        return _mm512_mask_mov_epi8(code, _mm512_kunpackd(back, front), nan_byte);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes&, __m512 u) const {
        __m512i code = magnitudes<DRAWN>(y, u);
        __m512i high = _mm512_srl_epi32(_mm512_castps_si512(y), sign_right);
        code = _mm512_ternarylogic_epi32(code, high, sign, 0xF8);
        return _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), nan_code);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes&, __m512 u) const {
        __m512 a = size(y), value;
        __m512i binade = field(a);
        if constexpr (DRAWN) {
            __m512i inverse = _mm512_sub_epi32(to_mantissa, binade);
            value = by_chance(_mm512_mul_ps(a, _mm512_castsi512_ps(inverse)), u);
            value = _mm512_mul_ps(_mm512_mul_ps(value, from_mantissa), _mm512_castsi512_ps(binade));
        } else {
            __m512 big = _mm512_castsi512_ps(_mm512_add_epi32(binade, magic));
            value = _mm512_sub_ps(_mm512_add_ps(a, big), big);
        }
        value = with_sign_of(value, y);
        return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), nan);
    }

    __m512 largest, nan, from_mantissa;
    __m512i lowest, magic, rebias, counting, one_more, sign, nan_code, to_mantissa;
    __m512i nan_byte, magnitude, even_words, odd_words;
    bool mantissa_free;  // without mantissa bits `one_more` may be 1
    bool finite;
    __m128i right, sign_right, word_right;
};

// 0 below 0, else 1: y decides, not x, which may be so small that y is -0.
struct WideSigns {
    template <Dtype>
    static constexpr bool kOfWords = false;
    static constexpr bool kDraws = false;

    static BLOCKSCALE_INLINE __mmask16 below(__m512 y) {
        return _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_LT_OQ);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512*) const {
        __mmask32 front = _mm512_kunpackw(below(y[1]), below(y[0]));
        __mmask32 back = _mm512_kunpackw(below(y[3]), below(y[2]));
        const __m512i one = _mm512_set1_epi8(1);
        return _mm512_mask_mov_epi8(one, _mm512_kunpackd(back, front), _mm512_setzero_si512());
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes&, __m512) const {
        return _mm512_mask_mov_epi32(_mm512_set1_epi32(1), below(y), _mm512_setzero_si512());
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes&, __m512) const {
        return _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), below(y), _mm512_set1_ps(-1.0f));
    }
};

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
