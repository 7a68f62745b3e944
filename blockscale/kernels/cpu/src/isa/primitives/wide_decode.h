// SPDX-License-Identifier: BSD-3-Clause
// Patterns decoded in registers, for AVX-512: what is served; wide_decode.cpp has the loops.
#pragma once

#include "wide_table.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {

// Patterns [n] times their steps into `to` [n]. stream: see stream16.
void wide_decode(const Spec& spec, const uint8_t* codes, int64_t column, int64_t n, int64_t size,
                 const LaneSource& source, bool stream, void* to, Dtype dtype);

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

// Whether wide_decode serves n patterns of blocks of `size`, from `column` on.
inline bool wide_decodes(const Spec& spec, int64_t column, int64_t size, const uint8_t* codes,
                         int64_t n) {
    const Element& e = spec.element;
    if (size < 16 && size != 1 && (size != 8 || column % 8)) return false;
    if (e.bits <= 4 && !spec.asym) return true;
    switch (e.family) {
        case Family::integer: return e.bits <= 8;
        // In a float16 the largest exponent means infinity or NaN, in an element perhaps a number.
        case Family::minifloat:
            return e.mantissa_bits >= 1 && e.bias <= 15 && e.max_code >> e.mantissa_bits < 31 &&
                   !any_reserved(e, codes, n);
        case Family::codebook: return true;
        case Family::binary: return false;  // of one bit: the table above serves it
    }
    __builtin_unreachable();
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
