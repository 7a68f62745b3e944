// SPDX-License-Identifier: BSD-3-Clause
// The largest of many magnitudes in registers, for AVX-512; those of 16-bit numbers without making
// floats of them.
#pragma once

#include "../simd/vector.h"
#include "blocks.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// ordered() of sixteen.
BLOCKSCALE_INLINE __m512i ordered16(__m512i bits) {
    return _mm512_ternarylogic_epi32(bits, _mm512_srai_epi32(bits, 31), _mm512_set1_epi32(INT32_MAX),
                                     0x78);
}

// 16 vectors -> the largest (smallest) lane of each, in order. A vector of the tree below holds as
// many of them as it has lanes left for each.
template <bool LARGEST>
inline __m512i pick(__m512i a, __m512i b) {
    return LARGEST ? _mm512_max_epi32(a, b) : _mm512_min_epi32(a, b);
}

template <bool LARGEST>
inline __m512i reduce16(const __m512i* v) {
    __m512i half[8], quarter[4], eighth[2];
    for (int i = 0; i < 8; ++i) {  // v[i], v[i + 4] (i < 4), v[i + 4], v[i + 8] (else)
        __m512i a = v[i < 4 ? i : i + 4], b = v[i < 4 ? i + 4 : i + 8];
        half[i] = pick<LARGEST>(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
    }
    for (int i = 0; i < 4; ++i)
        quarter[i] = pick<LARGEST>(_mm512_shuffle_i32x4(half[i], half[i + 4], 0x88),
                                   _mm512_shuffle_i32x4(half[i], half[i + 4], 0xDD));
    for (int i = 0; i < 2; ++i)
        eighth[i] = pick<LARGEST>(_mm512_unpacklo_epi64(quarter[2 * i], quarter[2 * i + 1]),
                                  _mm512_unpackhi_epi64(quarter[2 * i], quarter[2 * i + 1]));
    __m512 a = _mm512_castsi512_ps(eighth[0]), b = _mm512_castsi512_ps(eighth[1]);
    return pick<LARGEST>(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                         _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)));
}

// 128 numbers -> the largest (smallest) of each eight, in order.
template <bool LARGEST>
inline __m512i reduce_eights(const int32_t* x) {
    __m512i quarter[4], eighth[2];
    for (int i = 0; i < 4; ++i) {
        __m512i a = _mm512_loadu_si512(x + 32 * i), b = _mm512_loadu_si512(x + 32 * i + 16);
        quarter[i] =
            pick<LARGEST>(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    }
    for (int i = 0; i < 2; ++i)
        eighth[i] = pick<LARGEST>(_mm512_unpacklo_epi64(quarter[2 * i], quarter[2 * i + 1]),
                                  _mm512_unpackhi_epi64(quarter[2 * i], quarter[2 * i + 1]));
    __m512 a = _mm512_castsi512_ps(eighth[0]), b = _mm512_castsi512_ps(eighth[1]);
    __m512i across = pick<LARGEST>(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                                   _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xDD)));
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(order, across);
}

// The magnitudes of 16-bit numbers are compared as such, 32 at a time, and only the largest of each
// block becomes a float.
BLOCKSCALE_INLINE __m512i half_magnitudes(const uint16_t* x) {
    return _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi16(INT16_MAX));
}

// The larger of the magnitudes of x, y and what is found, of each of n columns.
inline void half_rows(const uint16_t* x, const uint16_t* y, int64_t n, uint16_t* found) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512i larger = _mm512_max_epu16(half_magnitudes(x + i), half_magnitudes(y + i));
        _mm512_storeu_si512(found + i, _mm512_max_epu16(larger, _mm512_loadu_si512(found + i)));
    }
    for (; i < n; ++i) {
        uint16_t a = x[i] & INT16_MAX, b = y[i] & INT16_MAX, larger = a > b ? a : b;
        found[i] = larger > found[i] ? larger : found[i];
    }
}

// The larger of each two neighbours, in 32-bit lanes.
BLOCKSCALE_INLINE __m512i larger_of_two(__m512i magnitudes) {
    __m512i larger = _mm512_max_epu16(magnitudes, _mm512_srli_epi32(magnitudes, 16));
    return _mm512_and_si512(larger, _mm512_set1_epi32(0xFFFF));
}

inline int32_t half_run(const uint16_t* x, int64_t n) {
    __m512i found = _mm512_setzero_si512();
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) found = _mm512_max_epu16(found, half_magnitudes(x + i));
    int32_t largest = _mm512_reduce_max_epi32(larger_of_two(found));
    for (; i < n; ++i) {
        int32_t magnitude = x[i] & INT16_MAX;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// Sixteen blocks of N -> their largest magnitudes, in order.
template <int N>
inline __m512i sixteen_halves(const uint16_t* x) {
    __m512i above[16];
    for (int b = 0; b < 16; ++b) {
        if constexpr (N == 16) {
            __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + b * N));
            above[b] = _mm512_and_si512(_mm512_cvtepu16_epi32(bits), _mm512_set1_epi32(INT16_MAX));
        } else {
            __m512i found = half_magnitudes(x + b * N);
            for (int i = 32; i < N; i += 32)
                found = _mm512_max_epu16(found, half_magnitudes(x + b * N + i));
            above[b] = larger_of_two(found);
        }
    }
    return reduce16<true>(above);
}

template <Dtype D>
inline void note_halves(__m512i magnitudes, int32_t* high) {
    __m512i bits = _mm512_slli_epi32(magnitudes, 16);
    if constexpr (D == Dtype::fp16)
        bits = _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(magnitudes)));
    _mm512_storeu_si512(high, _mm512_max_epi32(_mm512_loadu_si512(high), bits));
}

template <Dtype D>
inline void note_half(int32_t magnitude, int32_t* high) {
    float value;
    uint16_t half = static_cast<uint16_t>(magnitude);
    int32_t bits = to_bits(*widen(&half, D, 0, 1, &value));
    *high = bits > *high ? bits : *high;
}

// Adds n neighbours to the largest magnitudes of their blocks; NaN and infinities show there.
template <Dtype D>
inline void half_statistics(const uint16_t* x, int64_t column, int64_t n, int64_t size,
                            int32_t* high) {
    if (column % size == 0 && (size == 16 || size == 32 || size == 64)) {
        int64_t many = n / (16 * size) * 16;
        for (int64_t b = 0; b < many; b += 16) {
            const uint16_t* from = x + b * size;
            note_halves<D>(size == 16   ? sixteen_halves<16>(from)
                           : size == 32 ? sixteen_halves<32>(from)
                                        : sixteen_halves<64>(from),
                           high + b);
        }
        x += many * size, n -= many * size, high += many;
    }
    for_blocks(column, n, size, [&](int64_t i, int64_t length, int64_t block) {
        note_half<D>(half_run(x + i, length), high + block);
    });
}

// The same for ranges: 16-bit numbers as integers in the same order, 32 at a time.
BLOCKSCALE_INLINE __m512i ordered_halves(const uint16_t* x) {
    __m512i bits = _mm512_loadu_si512(x);
    return _mm512_ternarylogic_epi32(bits, _mm512_srai_epi16(bits, 15), _mm512_set1_epi16(INT16_MAX),
                                     0x78);
}

// The larger (smaller) of each two neighbours, in 32-bit lanes.
template <bool LARGEST>
BLOCKSCALE_INLINE __m512i pick_of_two(__m512i values) {
    return pick<LARGEST>(_mm512_srai_epi32(_mm512_slli_epi32(values, 16), 16),
                         _mm512_srai_epi32(values, 16));
}

// Sixteen such numbers in 32-bit lanes -> ordered() of their float32.
template <Dtype D>
BLOCKSCALE_INLINE __m512i ordered_floats(__m512i values) {
    __m512i bits = _mm512_ternarylogic_epi32(values, _mm512_srai_epi32(values, 31),
                                             _mm512_set1_epi32(INT16_MAX), 0x78);
    if constexpr (D == Dtype::bf16) return ordered16(_mm512_slli_epi32(bits, 16));
    return ordered16(_mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits))));
}

template <Dtype D>
BLOCKSCALE_INLINE void note_ranges(__m512i above, __m512i below, __mmask16 blocks, int32_t* high,
                                   int32_t* low) {
    __m512i most = _mm512_maskz_loadu_epi32(blocks, high), least = _mm512_maskz_loadu_epi32(blocks, low);
    most = _mm512_max_epi32(most, ordered_floats<D>(above));
    least = _mm512_min_epi32(least, ordered_floats<D>(below));
    _mm512_mask_storeu_epi32(high, blocks, most);
    _mm512_mask_storeu_epi32(low, blocks, least);
}

template <Dtype D, int N>
inline void sixteen_half_ranges(const uint16_t* x, int32_t* high, int32_t* low) {
    __m512i above[16], below[16];
    for (int b = 0; b < 16; ++b) {
        if constexpr (N == 16) {
            const __m256i* from = reinterpret_cast<const __m256i*>(x + b * N);
            __m512i bits = _mm512_cvtepi16_epi32(_mm256_loadu_si256(from));
            above[b] = below[b] = _mm512_ternarylogic_epi32(
                bits, _mm512_srai_epi32(bits, 31), _mm512_set1_epi32(INT16_MAX), 0x78);
        } else {
            __m512i most = ordered_halves(x + b * N), least = most;
            for (int i = 32; i < N; i += 32) {
                __m512i values = ordered_halves(x + b * N + i);
                most = _mm512_max_epi16(most, values);
                least = _mm512_min_epi16(least, values);
            }
            above[b] = pick_of_two<true>(most);
            below[b] = pick_of_two<false>(least);
        }
    }
    note_ranges<D>(reduce16<true>(above), reduce16<false>(below), 0xFFFF, high, low);
}

template <Dtype D>
inline void half_range(const uint16_t* x, int64_t n, int32_t* high, int32_t* low) {
    __m512i most = _mm512_set1_epi16(INT16_MIN), least = _mm512_set1_epi16(INT16_MAX);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512i values = ordered_halves(x + i);
        most = _mm512_max_epi16(most, values);
        least = _mm512_min_epi16(least, values);
    }
    int32_t above = _mm512_reduce_max_epi32(pick_of_two<true>(most));
    int32_t below = _mm512_reduce_min_epi32(pick_of_two<false>(least));
    for (; i < n; ++i) {
        int32_t bits = static_cast<int16_t>(x[i]), value = bits ^ ((bits >> 31) & INT16_MAX);
        above = value > above ? value : above;
        below = value < below ? value : below;
    }
    note_ranges<D>(_mm512_set1_epi32(above), _mm512_set1_epi32(below), 1, high, low);
}

// Adds n neighbours to the ranges of their blocks; NaN and infinities show there.
template <Dtype D>
inline void half_ranges(const uint16_t* x, int64_t column, int64_t n, int64_t size, int32_t* high,
                        int32_t* low) {
    if (column % size == 0 && (size == 16 || size == 32 || size == 64)) {
        int64_t many = n / (16 * size) * 16;
        for (int64_t b = 0; b < many; b += 16) {
            const uint16_t* from = x + b * size;
            size == 16   ? sixteen_half_ranges<D, 16>(from, high + b, low + b)
            : size == 32 ? sixteen_half_ranges<D, 32>(from, high + b, low + b)
                         : sixteen_half_ranges<D, 64>(from, high + b, low + b);
        }
        x += many * size, n -= many * size, high += many, low += many;
    }
    for_blocks(column, n, size, [&](int64_t i, int64_t length, int64_t block) {
        half_range<D>(x + i, length, high + block, low + block);
    });
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
