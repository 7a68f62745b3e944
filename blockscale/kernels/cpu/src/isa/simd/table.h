// SPDX-License-Identifier: BSD-3-Clause
// Numbers looked up in tables of up to 256 entries, sixteen at a time in registers, for AVX-512.
#pragma once

#include "bits.h"

#if defined(__AVX512BW__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// table[index] of 2^bits entries, bits = 4 ... 8. 32 of them lie in two registers; bits of an index
// above the low five choose between such pairs.
BLOCKSCALE_INLINE __m512i look_up(const void* table, int bits, __m512i index) {
    const __m512i* from = static_cast<const __m512i*>(table);
    if (bits == 4) return _mm512_permutexvar_epi32(index, _mm512_load_si512(from));
    auto of_pair = [&](int pair) BLOCKSCALE_INLINE_LAMBDA {
        return _mm512_permutex2var_epi32(_mm512_load_si512(from + 2 * pair), index,
                                         _mm512_load_si512(from + 2 * pair + 1));
    };
    if (bits == 5) return of_pair(0);
    __mmask16 odd = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
    auto of_two = [&](int pair) BLOCKSCALE_INLINE_LAMBDA {
        return _mm512_mask_mov_epi32(of_pair(pair), odd, of_pair(pair + 1));
    };
    if (bits == 6) return of_two(0);
    __mmask16 second = _mm512_test_epi32_mask(index, _mm512_set1_epi32(64));
    __m512i low = _mm512_mask_mov_epi32(of_two(0), second, of_two(2));
    if (bits == 7) return low;
    __mmask16 upper = _mm512_test_epi32_mask(index, _mm512_set1_epi32(128));
    __m512i high = _mm512_mask_mov_epi32(of_two(4), second, of_two(6));
    return _mm512_mask_mov_epi32(low, upper, high);
}

// The same for 32 words.
BLOCKSCALE_INLINE __m512i look_up_words(const void* table, int bits, __m512i index) {
    const __m512i* from = static_cast<const __m512i*>(table);
    if (bits <= 5) return _mm512_permutexvar_epi16(index, _mm512_load_si512(from));
    auto of_pair = [&](int pair) BLOCKSCALE_INLINE_LAMBDA {
        return _mm512_permutex2var_epi16(_mm512_load_si512(from + 2 * pair), index,
                                         _mm512_load_si512(from + 2 * pair + 1));
    };
    if (bits == 6) return of_pair(0);
    __mmask32 odd = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
    __m512i low = _mm512_mask_mov_epi16(of_pair(0), odd, of_pair(1));
    if (bits == 7) return low;
    __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
    __m512i high = _mm512_mask_mov_epi16(of_pair(2), odd, of_pair(3));
    return _mm512_mask_mov_epi16(low, upper, high);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
