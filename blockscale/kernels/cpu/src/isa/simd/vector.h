// SPDX-License-Identifier: BSD-3-Clause
// Sixteen numbers in one register, for AVX-512, and from and to memory of any dtype.
#pragma once

#include "floats.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

BLOCKSCALE_INLINE __mmask16 lanes_of(int64_t n) { return n >= 16 ? 0xFFFF : (1u << n) - 1; }

// A masked load takes several times as long as a plain one (Zen 5), also where the mask is full.
BLOCKSCALE_INLINE __m512 load_floats(const float* from, __mmask16 mask) {
    return mask == 0xFFFF ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(mask, from);
}

// 16 numbers at index i, those beyond `mask` read as 0 and not touched.
template <Dtype D>
BLOCKSCALE_INLINE __m512 load16(const void* x, int64_t i, __mmask16 mask) {
    if constexpr (D == Dtype::fp32) return load_floats(static_cast<const float*>(x) + i, mask);
    const uint16_t* from = static_cast<const uint16_t*>(x) + i;
    __m256i halves = mask == 0xFFFF
                         ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                         : _mm256_maskz_loadu_epi16(mask, from);
    if constexpr (D == Dtype::fp16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

template <Dtype D>
BLOCKSCALE_INLINE void prefetch(const void* x, int64_t i, int64_t ahead) {
    constexpr int64_t bytes = D == Dtype::fp32 ? 4 : 2;
    _mm_prefetch(static_cast<const char*>(x) + i * bytes + ahead, _MM_HINT_T1);
}

// The upper halves are the bfloat16. finite: value has no NaN.
BLOCKSCALE_INLINE __m512i rounded_to_bfloat16(__m512 value, bool finite = false) {
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
    sum = _mm512_mask_sub_epi32(sum, odd, sum, _mm512_set1_epi32(-1));
    if (finite) return sum;
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(sum, nan, _mm512_set1_epi32(0x7FC00000));
}

BLOCKSCALE_INLINE __m256i to_bfloat16(__m512 value) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_to_bfloat16(value), 16));
}

template <Dtype D>
BLOCKSCALE_INLINE void store16(void* y, int64_t i, __mmask16 mask, __m512 value) {
    if constexpr (D == Dtype::fp32) {
        float* to = static_cast<float*>(y) + i;
        mask == 0xFFFF ? _mm512_storeu_ps(to, value) : _mm512_mask_storeu_ps(to, mask, value);
        return;
    }
    __m256i halves = D == Dtype::fp16 ? _mm512_cvtps_ph(value, 0) : to_bfloat16(value);
    uint16_t* to = static_cast<uint16_t*>(y) + i;
    if (mask == 0xFFFF) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
    } else {
        _mm256_mask_storeu_epi16(to, mask, halves);
    }
}

// The same for 16 numbers that begin on a whole line of the output, around the caches: see on_lines.
template <Dtype D>
BLOCKSCALE_INLINE void stream16(void* y, int64_t i, __m512 value) {
    if constexpr (D == Dtype::fp32) return _mm512_stream_ps(static_cast<float*>(y) + i, value);
    __m256i halves = D == Dtype::fp16 ? _mm512_cvtps_ph(value, 0) : to_bfloat16(value);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(y) + i), halves);
}

// Every other one of 64 words, from the second on: the upper halves of 32-bit lanes.
BLOCKSCALE_INLINE __m512i upper_words() {
    return _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                            25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
}

// 64 numbers to index i; stream: as stream16. finite: as rounded_to_bfloat16.
template <Dtype D>
BLOCKSCALE_INLINE void store64(void* y, int64_t i, const __m512* value, bool stream, bool finite) {
    if constexpr (D == Dtype::bf16) {
        auto store = [&](bool without_nan) BLOCKSCALE_INLINE_LAMBDA {
#pragma GCC unroll 2
            for (int j = 0; j < 4; j += 2) {
                __m512i low = rounded_to_bfloat16(value[j], without_nan);
                __m512i high = rounded_to_bfloat16(value[j + 1], without_nan);
                __m512i words = _mm512_permutex2var_epi16(low, upper_words(), high);
                __m512i* to = reinterpret_cast<__m512i*>(static_cast<uint16_t*>(y) + i + 16 * j);
                stream ? _mm512_stream_si512(to, words) : _mm512_storeu_si512(to, words);
            }
        };
        finite ? store(true) : store(false);
    } else {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j)
            stream ? stream16<D>(y, i + 16 * j, value[j]) : store16<D>(y, i + 16 * j, 0xFFFF, value[j]);
    }
}

// Run f with the dtype as a constant.
template <class F>
BLOCKSCALE_INLINE void with_dtype(Dtype dtype, F f) {
    switch (dtype) {
        case Dtype::fp32: return f.template operator()<Dtype::fp32>();
        case Dtype::bf16: return f.template operator()<Dtype::bf16>();
        case Dtype::fp16: return f.template operator()<Dtype::fp16>();
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
