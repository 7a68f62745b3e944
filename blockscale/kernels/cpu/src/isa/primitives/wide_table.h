// Minifloats of a few bits by a table of all that rounding can meet, for AVX-512: half of the work of
// arithmetic, and for bfloat16 less, because 32 numbers lie in one register.
#pragma once

#include "encode.h"
#include "wide_elements.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Where rounding to an element with m mantissa bits turns over, the magnitude has at most m + 1 of
// them. Such magnitudes from half of the smallest number on are points; entry 2 k is the code of point
// k, entry 2 k + 1 that of all between it and the next one.
struct CodeTable {
    static constexpr int kEntries = 64;

    // For spec.element and rounding to nearest even; serves: whether the entries suffice.
    CodeTable(const Spec& spec, bool wanted) : serves(false) {
        const Element& e = spec.element;
        if (!wanted || e.family != Family::minifloat) return;
        if (spec.rounding != Rounding::nearest_even) return;
        shift = 6 - e.mantissa_bits;  // between points, in bits of a bfloat16
        first = (127 - e.bias - e.mantissa_bits) << 7;
        int32_t last = first + (kEntries / 2 - 1) * (1 << (shift > 0 ? shift : 0));
        serves = shift > 0 && first >= 0x80 && from_bits(last << 16) >= e.high;
        if (!serves) return;
        float values[kEntries];
        uint8_t codes[kEntries];
        for (int i = 0; i < kEntries; ++i)
            values[i] = from_bits((first + (i / 2 << shift) + (i % 2 << (shift - 1))) << 16);
        encode(spec, values, nullptr, nullptr, kEntries, codes);
        for (int i = 0; i < kEntries; ++i) entries[i] = codes[i];
    }

    // Whether x [n blocks] times these factors may be counted on the bits of x: points of each block
    // must be normal numbers.
    bool serves_bits(const float* factors, int64_t n) const {
        int32_t low = kInfinity, high = 0;
        for (int64_t i = 0; i < n; ++i) {
            int32_t bits = to_bits(factors[i]);
            low = bits < low ? bits : low;
            high = bits > high ? bits : high;
        }
        return low >= 1 << 23 && high >> 23 <= (first >> 7) + 126;
    }

    alignas(64) int16_t entries[kEntries];
    int32_t first;  // point, as a bfloat16
    int shift;
    bool serves;
};

#if defined(__AVX512BW__)
struct WideTable : WideMinifloats {
    template <Dtype D>
    static constexpr bool kOfWords = D == Dtype::bf16;

    WideTable(const Spec& spec, const CodeTable& table, bool of_words)
        : WideMinifloats(spec, true), of_words(of_words), low(_mm512_load_si512(table.entries)),
          high(_mm512_load_si512(table.entries + 32)),
          first(_mm512_set1_epi16(static_cast<int16_t>(table.first))),
          last(_mm512_set1_epi16(static_cast<int16_t>((32 << table.shift) - 1))),
          up(_mm512_set1_epi16(static_cast<int16_t>((1 << table.shift) - 1))),
          apart(_mm_cvtsi32_si128(table.shift)) {}

    // Patterns of numbers whose magnitudes, as bfloat16, lie so far above the first point.
    BLOCKSCALE_INLINE __m512i look_up(__m512i above, __m512i signs) const {
        above = _mm512_min_epu16(above, last);
        __m512i below = _mm512_srl_epi16(above, apart);
        __m512i entry =
            _mm512_add_epi16(below, _mm512_srl_epi16(_mm512_add_epi16(above, up), apart));
        __m512i code = _mm512_permutex2var_epi16(low, entry, high);
        return _mm512_ternarylogic_epi32(magnitude, code, _mm512_srl_epi16(signs, word_right), 0xCA);
    }

    BLOCKSCALE_INLINE static __m512i together(__m512i front, __m512i back) {
        return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0),
                                        _mm512_packus_epi16(front, back));
    }

    // The upper halves of 32 floats, whose last bit also says that the lower ones are not 0.
    BLOCKSCALE_INLINE __m512i half_of(const __m512* y) const {
        __m512i a = _mm512_castps_si512(y[0]), b = _mm512_castps_si512(y[1]);
        __m512i upper = _mm512_permutex2var_epi16(a, odd_words, b);
        __m512i lower = _mm512_permutex2var_epi16(a, even_words, b);
        lower = _mm512_min_epu16(lower, _mm512_set1_epi16(1));
        const __m512i unsigned_bits = _mm512_set1_epi16(INT16_MAX);
        __m512i size = _mm512_ternarylogic_epi32(upper, lower, unsigned_bits, 0xA8);  // (a | b) & c
        return look_up(_mm512_subs_epu16(size, first), upper);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i bytes(const __m512* y, const __m512*, const __m512*) const {
        return together(half_of(y), half_of(y + 2));
    }

    // 32 bfloat16 times a power of two.
    BLOCKSCALE_INLINE __m512i half_of(const uint16_t* x, __m512 factor) const {
        __m512i field = _mm512_castps_si512(factor), one = _mm512_set1_epi16(0x3F80);
        field = _mm512_or_si512(field, _mm512_srli_epi32(field, 16));
        __m512i from = _mm512_sub_epi16(_mm512_add_epi16(first, one), field);
        __m512i bits = _mm512_loadu_si512(x);
        __m512i size = _mm512_and_si512(bits, _mm512_set1_epi16(INT16_MAX));
        return look_up(_mm512_subs_epu16(size, from), bits);
    }

    BLOCKSCALE_INLINE __m512i bytes(const uint16_t* x, __m512 front, __m512 back) const {
        return together(half_of(x, front), half_of(x + 32, back));
    }

    bool of_words;
    __m512i low, high, first, last, up;
    __m128i apart;
};
#endif

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
