// SPDX-License-Identifier: BSD-3-Clause
// Tables of powers of 2^(1/2^F), whose codes are counted on the bits of float32 (Octaves in codebook.h).
#pragma once

#include "bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// The code of y's magnitude; NaN counts as 0.
inline int32_t octave_code(const Octaves& o, float y) {
    int32_t bits = to_bits(y == y ? y : 0.0f) & INT32_MAX;
    int32_t code = (bits + o.entries[(bits >> Octaves::kRight) & (Octaves::kCells - 1)]) >> o.shift;
    code = code > 1 ? code : 1;
    code = code < o.last ? code : o.last;
    return bits > o.first ? code : 0;
}

// The bits of the value of a magnitude's code.
inline int32_t octave_bits(const Octaves& o, int32_t code) {
    int32_t n = code + o.base;
    int32_t bits = ((n << o.shift) & kInfinity) | o.mantissas[n & (Octaves::kCells - 1)];
    return code > 0 ? bits : 0;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// The same for eight; GCC would gather.
struct EightOctaves {
    explicit EightOctaves(const Octaves& o)
        : entries{load(o.entries), load(o.entries + 8)}, mantissas{load(o.mantissas), load(o.mantissas + 8)},
          first(_mm256_set1_epi32(o.first)), last(_mm256_set1_epi32(o.last)),
          base(_mm256_set1_epi32(o.base)), shift(_mm_cvtsi32_si128(o.shift)) {}

    static __m256i load(const int32_t* from) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
    }

    // table[index % 16]
    static BLOCKSCALE_INLINE __m256i look_up(const __m256i* table, __m256i index) {
        __m256i low = _mm256_permutevar8x32_epi32(table[0], index);
        __m256i high = _mm256_permutevar8x32_epi32(table[1], index);
        return _mm256_castps_si256(_mm256_blendv_ps(
            _mm256_castsi256_ps(low), _mm256_castsi256_ps(high),
            _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));  // bit 3 becomes the sign
    }

    BLOCKSCALE_INLINE __m256i codes(__m256 y) const {
        y = _mm256_and_ps(y, _mm256_cmp_ps(y, y, _CMP_ORD_Q));
        __m256i bits = _mm256_and_si256(_mm256_castps_si256(y), _mm256_set1_epi32(INT32_MAX));
        __m256i entry = look_up(entries, _mm256_srli_epi32(bits, Octaves::kRight));
        __m256i code = _mm256_sra_epi32(_mm256_add_epi32(bits, entry), shift);
        code = _mm256_min_epi32(_mm256_max_epi32(code, _mm256_set1_epi32(1)), last);
        return _mm256_and_si256(code, _mm256_cmpgt_epi32(bits, first));
    }

    BLOCKSCALE_INLINE __m256i bits(__m256i code) const {
        __m256i n = _mm256_add_epi32(code, base);
        __m256i field = _mm256_and_si256(_mm256_sll_epi32(n, shift), _mm256_set1_epi32(kInfinity));
        __m256i value = _mm256_or_si256(field, look_up(mantissas, n));
        return _mm256_and_si256(value, _mm256_cmpgt_epi32(code, _mm256_setzero_si256()));
    }

    __m256i entries[2], mantissas[2], first, last, base;
    __m128i shift;
};
#elif defined(__aarch64__)
// The same for four; a table of 16 numbers is one of 64 bytes.
struct FourOctaves {
    explicit FourOctaves(const Octaves& o)
        : entries(load(o.entries)), mantissas(load(o.mantissas)), first(vdupq_n_s32(o.first)),
          last(vdupq_n_s32(o.last)), base(vdupq_n_s32(o.base)), left(vdupq_n_s32(o.shift)),
          right(vdupq_n_s32(-o.shift)) {}

    static uint8x16x4_t load(const int32_t* from) {
        return vld1q_u8_x4(reinterpret_cast<const uint8_t*>(from));
    }

    // table[index % 16]
    static BLOCKSCALE_INLINE int32x4_t look_up(const uint8x16x4_t& table, int32x4_t index) {
        uint32x4_t at = vandq_u32(vreinterpretq_u32_s32(index), vdupq_n_u32(Octaves::kCells - 1));
        at = vmlaq_n_u32(vdupq_n_u32(0x03020100), at, 0x04040404);
        return vreinterpretq_s32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(at)));
    }

    // y's bits, of NaN those of 0
    static BLOCKSCALE_INLINE int32x4_t without_nan(float32x4_t y) {
        return vandq_s32(vreinterpretq_s32_f32(y), vreinterpretq_s32_u32(vceqq_f32(y, y)));
    }

    BLOCKSCALE_INLINE int32x4_t codes(int32x4_t y) const {
        int32x4_t bits = vandq_s32(y, vdupq_n_s32(INT32_MAX));
        int32x4_t entry = look_up(entries, vshrq_n_s32(bits, Octaves::kRight));
        int32x4_t code = vshlq_s32(vaddq_s32(bits, entry), right);
        code = vminq_s32(vmaxq_s32(code, vdupq_n_s32(1)), last);
        return vandq_s32(code, vreinterpretq_s32_u32(vcgtq_s32(bits, first)));
    }

    BLOCKSCALE_INLINE int32x4_t bits(int32x4_t code) const {
        int32x4_t n = vaddq_s32(code, base);
        int32x4_t field = vandq_s32(vshlq_s32(n, left), vdupq_n_s32(kInfinity));
        int32x4_t value = vorrq_s32(field, look_up(mantissas, n));
        return vandq_s32(value, vreinterpretq_s32_u32(vcgtq_s32(code, vdupq_n_s32(0))));
    }

    uint8x16x4_t entries, mantissas;
    int32x4_t first, last, base, left, right;
};
#endif

inline void octaves_to_codes(const Octaves& o, const float* y, int64_t n, uint8_t* __restrict codes) {
    int64_t i = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
    const EightOctaves eight(o);
    const __m256i sign = _mm256_set1_epi32(o.sign);
    const __m256i low_bytes = _mm256_set1_epi64x(0x0C080400);
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(y + i);
        __m256 below = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
        __m256i minus = _mm256_and_si256(_mm256_srai_epi32(_mm256_castps_si256(below), 31), sign);
        __m256i code = _mm256_shuffle_epi8(_mm256_or_si256(eight.codes(x), minus), low_bytes);
        int32_t front = _mm256_cvtsi256_si32(code), back = _mm256_extract_epi32(code, 4);
        copy<4>(codes + i, &front);
        copy<4>(codes + i + 4, &back);
    }
#elif defined(__aarch64__)
    const FourOctaves four(o);
    const int32x4_t sign = vdupq_n_s32(o.sign);
    for (; i + 4 <= n; i += 4) {
        int32x4_t x = FourOctaves::without_nan(vld1q_f32(y + i));
        int32x4_t code = vorrq_s32(four.codes(x), vandq_s32(vshrq_n_s32(x, 31), sign));
        int16x4_t words = vmovn_s32(code);
        int32_t bytes = vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(words, words))), 0);
        copy<4>(codes + i, &bytes);
    }
#endif
    for (; i < n; ++i) {
        bool minus = y[i] == y[i] && to_bits(y[i]) < 0;
        codes[i] = static_cast<uint8_t>(octave_code(o, y[i]) + (minus ? o.sign : 0));
    }
}

inline void octaves_to_values(const Octaves& o, const float* y, int64_t n, float* __restrict values) {
    int64_t i = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
    const EightOctaves eight(o);
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(y + i);
        __m256 below = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
        __m256 minus = _mm256_and_ps(below, _mm256_castsi256_ps(_mm256_set1_epi32(INT32_MIN)));
        _mm256_storeu_ps(values + i,
                         _mm256_or_ps(_mm256_castsi256_ps(eight.bits(eight.codes(x))), minus));
    }
#elif defined(__aarch64__)
    const FourOctaves four(o);
    for (; i + 4 <= n; i += 4) {
        int32x4_t x = FourOctaves::without_nan(vld1q_f32(y + i));
        int32x4_t value = vorrq_s32(four.bits(four.codes(x)), vandq_s32(x, vdupq_n_s32(INT32_MIN)));
        vst1q_f32(values + i, vreinterpretq_f32_s32(value));
    }
#endif
    for (; i < n; ++i) {
        int32_t minus = y[i] == y[i] ? to_bits(y[i]) & INT32_MIN : 0;
        values[i] = from_bits(octave_bits(o, octave_code(o, y[i])) | minus);
    }
}

inline void octaves_from_codes(const Octaves& o, const uint8_t* codes, int64_t n, float* __restrict values) {
    int64_t i = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
    const EightOctaves eight(o);
    const __m256i magnitude = _mm256_set1_epi32(o.last), sign = _mm256_set1_epi32(o.sign);
    for (; i + 8 <= n; i += 8) {
        int64_t bytes;
        copy<8>(&bytes, codes + i);
        __m256i code = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
        __m256i plus = _mm256_cmpeq_epi32(_mm256_and_si256(code, sign), _mm256_setzero_si256());
        __m256i minus = _mm256_andnot_si256(plus, _mm256_set1_epi32(INT32_MIN));
        __m256i value = eight.bits(_mm256_and_si256(code, magnitude));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i), _mm256_or_si256(value, minus));
    }
#elif defined(__aarch64__)
    const FourOctaves four(o);
    const int32x4_t magnitude = vdupq_n_s32(o.last), sign = vdupq_n_s32(o.sign);
    for (; i + 4 <= n; i += 4) {
        int32_t bytes;
        copy<4>(&bytes, codes + i);
        uint16x8_t words = vmovl_u8(vreinterpret_u8_s32(vdup_n_s32(bytes)));
        int32x4_t code = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words)));
        int32x4_t minus = vandq_s32(vreinterpretq_s32_u32(vtstq_s32(code, sign)), vdupq_n_s32(INT32_MIN));
        int32x4_t value = vorrq_s32(four.bits(vandq_s32(code, magnitude)), minus);
        vst1q_f32(values + i, vreinterpretq_f32_s32(value));
    }
#endif
    for (; i < n; ++i) {
        int32_t minus = codes[i] & o.sign ? INT32_MIN : 0;
        values[i] = from_bits(octave_bits(o, codes[i] & o.last) | minus);
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
