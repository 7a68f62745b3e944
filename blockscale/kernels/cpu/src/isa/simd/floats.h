// SPDX-License-Identifier: BSD-3-Clause
// float32 <-> bfloat16, float16: exact one way, to nearest even the other (numerics.md, 3.1 and 5).
#pragma once

#include "bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

inline int64_t dtype_bytes(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

inline float from_half(uint16_t half) {
    // The exponent of a float16 moved to float32's place reads 112 too low; the product is exact.
    uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFF) << 13;
    float value = from_bits(magnitude) * 5.192296858534828e33f;  // 2^112
    uint32_t bits = magnitude >= 0x0F800000u ? (magnitude | kInfinity) : to_bits(value);
    return from_bits(bits | static_cast<uint32_t>(half & 0x8000) << 16);
}

inline uint16_t to_half(float value) {
    uint32_t bits = to_bits(value), magnitude = bits & 0x7FFFFFFF;
    // Normal numbers: drop 13 bits, to nearest even. A carry into the exponent is right, too.
    uint32_t normal = (magnitude - (112u << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    // Below 2^-14: adding 2^-1 leaves the subnormal's bits, rounded to nearest even, at the bottom.
    uint32_t small = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
    uint32_t half = magnitude < (113u << 23) ? small : normal;
    half = magnitude >= 0x477FF000u ? 0x7C00u : half;  // 65520 and above round to infinity
    half = magnitude > static_cast<uint32_t>(kInfinity) ? 0x7E00u : half;
    return half | ((bits >> 16) & 0x8000);
}

inline uint16_t to_bfloat(float value) {
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7FFFFFFF) > static_cast<uint32_t>(kInfinity) ? 0x7FC0 : rounded;
}

// n numbers at index `first` of `x` as float32: where they lie, or converted into `buffer`.
inline const float* widen(const void* x, Dtype dtype, int64_t first, int64_t n, float* buffer) {
    if (dtype == Dtype::fp32) return static_cast<const float*>(x) + first;
    const uint16_t* in = static_cast<const uint16_t*>(x) + first;
    float* __restrict out = buffer;
    if (dtype == Dtype::bf16) {
        for (int64_t i = 0; i < n; ++i) out[i] = from_bits(static_cast<uint32_t>(in[i]) << 16);
        return buffer;
    }
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(
                                      reinterpret_cast<const __m256i*>(in + i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                      reinterpret_cast<const __m128i*>(in + i))));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(in + i))));
#endif
    for (; i < n; ++i) out[i] = from_half(in[i]);
    return buffer;
}

// n float32 -> `dtype` (bf16 or fp16).
inline void narrow(const float* x, Dtype dtype, int64_t n, uint16_t* __restrict out) {
    if (dtype == Dtype::bf16) {
        for (int64_t i = 0; i < n; ++i) out[i] = to_bfloat(x[i]);
        return;
    }
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(x + i), 0));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4)
        vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
#endif
    for (; i < n; ++i) out[i] = to_half(x[i]);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
