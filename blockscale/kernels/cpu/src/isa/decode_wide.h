// Minifloats decoded by the float16 converter, for AVX-512: their exponent and mantissa put where
// float16 has its own read as the value times 2^(bias - 15), subnormals included.
#pragma once

#include "wide.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Whether any of n codes is reserved (NaN or infinity), which the shift below would misread.
inline bool any_reserved(const Element& e, const uint8_t* codes, int64_t n) {
    int mask = (1 << (e.bits - 1)) - 1;
    if (e.max_code >= mask) return false;
    __m512i magnitude = _mm512_set1_epi8(static_cast<char>(mask));
    __m512i largest = _mm512_set1_epi8(static_cast<char>(e.max_code));
    __mmask64 found = 0;
    for (int64_t i = 0; i < n; i += 64) {
        __mmask64 valid = n - i >= 64 ? ~__mmask64(0) : (__mmask64(1) << (n - i)) - 1;
        __m512i code = _mm512_and_si512(_mm512_maskz_loadu_epi8(valid, codes + i), magnitude);
        found |= _mm512_cmpgt_epu8_mask(code, largest);
    }
    return found != 0;
}

struct WideDecoder {
    explicit WideDecoder(const Spec& spec)
        : magnitude(_mm256_set1_epi16((1 << (spec.element.bits - 1)) - 1)),
          left(_mm_cvtsi32_si128(10 - spec.element.mantissa_bits)),
          sign_left(_mm_cvtsi32_si128(16 - spec.element.bits)),
          rebias(_mm512_set1_ps(from_bits((127 + 15 - spec.element.bias) << 23))),
          integers(spec.element.family == Family::integer),
          drop(_mm_cvtsi32_si128(spec.element.is_signed ? 32 - spec.element.bits : 0)) {}

    BLOCKSCALE_INLINE __m512 operator()(const uint8_t* codes, int64_t i, __mmask16 mask) const {
        __m128i bytes = _mm_maskz_loadu_epi8(mask, codes + i);
        if (integers) {
            __m512i wide = _mm512_cvtepu8_epi32(bytes);
            return _mm512_cvtepi32_ps(_mm512_sra_epi32(_mm512_sll_epi32(wide, drop), drop));
        }
        __m256i code = _mm256_cvtepu8_epi16(bytes);
        __m256i half = _mm256_sll_epi16(_mm256_and_si256(code, magnitude), left);
        __m256i sign = _mm256_sll_epi16(code, sign_left);  // the bit arrives at 15, others above are cut
        half = _mm256_ternarylogic_epi32(half, sign, _mm256_set1_epi16(INT16_MIN), 0xF8);
        return _mm512_mul_ps(_mm512_cvtph_ps(half), rebias);
    }

    __m256i magnitude;
    __m128i left, sign_left;
    __m512 rebias;
    bool integers;
    __m128i drop;
};

inline bool wide_decodes(const Spec& spec, int64_t size) {
    const Element& e = spec.element;
    // In a float16 the largest exponent means infinity or NaN, in an element perhaps a number.
    bool half = e.family == Family::minifloat && e.mantissa_bits >= 1 && e.bias <= 15 &&
                e.max_code >> e.mantissa_bits < 31;
    bool whole = e.family == Family::integer && e.bits <= 8 && !spec.asym;
    return (half || whole) && (size == 1 || size >= 16);
}

template <Dtype D>
void decode_loop(const WideDecoder decode, const LaneSource source, const uint8_t* codes,
                 int64_t column, int64_t n, int64_t size, void* to) {
    for_lanes(source, column, n, size,
              [=](int64_t i, __mmask16 mask, Lanes lanes) BLOCKSCALE_INLINE_LAMBDA {
        store16<D>(to, i, mask, _mm512_mul_ps(decode(codes, i, mask), lanes.step));
    });
}

// Patterns [n] times their steps into `to` [n].
inline void wide_decode(const Spec& spec, const uint8_t* codes, int64_t column, int64_t n,
                        int64_t size, const float* steps, void* to, Dtype dtype) {
    WideDecoder decode(spec);
    LaneSource source{steps, steps, nullptr};
    switch (dtype) {
        case Dtype::fp32: return decode_loop<Dtype::fp32>(decode, source, codes, column, n, size, to);
        case Dtype::bf16: return decode_loop<Dtype::bf16>(decode, source, codes, column, n, size, to);
        case Dtype::fp16: return decode_loop<Dtype::fp16>(decode, source, codes, column, n, size, to);
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
