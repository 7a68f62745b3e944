// SPDX-License-Identifier: BSD-3-Clause
// Statistics of boxes, blocks of a few rows that lie apart: sixteen blocks at a time, each through all of
// its rows in registers, for AVX-512. The loops of statistics.h say what it means and serve the rest. They
// also ask memory for rows ahead, which pays for many of them.
#pragma once

#include "plan.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// The rows of a unit, from its first column on.
struct BoxRows {
    static constexpr int64_t kMost = 8;

    const char* row[kMost];
    int64_t count = 0;
};

#if defined(__AVX512BW__)
// Boxes of N columns of float32.
template <int N, bool MASKED, bool RANGE>
inline void sixteen_boxes(const BoxRows& rows, int64_t column, const Statistics& s) {
    const __m512i magnitude = _mm512_set1_epi32(INT32_MAX), infinity = _mm512_set1_epi32(kInfinity);
    __m512i above[16], below[16];
    for (int b = 0; b < 16; ++b) {
        __m512i high = _mm512_set1_epi32(RANGE ? INT32_MIN : 0), low = _mm512_set1_epi32(INT32_MAX);
        for (int64_t r = 0; r < rows.count; ++r) {
            const char* from = rows.row[r] + (column + b * N) * 4;
            for (int i = 0; i < N; i += 16) {
                __m512i bits = _mm512_loadu_si512(from + 4 * i), size = _mm512_and_si512(bits, magnitude);
                __mmask16 finite = 0xFFFF;
                if constexpr (MASKED) finite = _mm512_cmplt_epi32_mask(size, infinity);
                if constexpr (RANGE) {
                    bits = ordered16(bits);
                    high = _mm512_mask_max_epi32(high, finite, high, bits);
                    low = _mm512_mask_min_epi32(low, finite, low, bits);
                } else {
                    high = _mm512_mask_max_epi32(high, finite, high, size);
                }
            }
        }
        above[b] = high, below[b] = low;
    }
    _mm512_storeu_si512(s.high, _mm512_max_epi32(_mm512_loadu_si512(s.high), reduce16<true>(above)));
    if constexpr (RANGE)
        _mm512_storeu_si512(s.low, _mm512_min_epi32(_mm512_loadu_si512(s.low), reduce16<false>(below)));
}

// 32 numbers of 16 bits; where boxes have 16 columns, 16 of them with their signs in 32-bit lanes.
template <int N>
BLOCKSCALE_INLINE __m512i load_halves(const uint16_t* x) {
    if constexpr (N > 16) return _mm512_loadu_si512(x);
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}

// The largest magnitudes of boxes of N columns of 16-bit numbers.
template <Dtype D, int N>
inline void sixteen_half_boxes(const BoxRows& rows, int64_t column, int32_t* high) {
    __m512i above[16];
    for (int b = 0; b < 16; ++b) {
        __m512i found = _mm512_setzero_si512();
        for (int64_t r = 0; r < rows.count; ++r) {
            const uint16_t* from = reinterpret_cast<const uint16_t*>(rows.row[r]) + column + b * N;
            for (int i = 0; i < N; i += 32) {
                __m512i size = _mm512_and_si512(load_halves<N>(from + i), _mm512_set1_epi16(INT16_MAX));
                found = _mm512_max_epu16(found, size);
            }
        }
        above[b] = N > 16 ? larger_of_two(found) : _mm512_and_si512(found, _mm512_set1_epi32(INT16_MAX));
    }
    note_halves<D>(reduce16<true>(above), high);
}

// The ranges of boxes of N columns of 16-bit numbers.
template <Dtype D, int N>
inline void sixteen_half_box_ranges(const BoxRows& rows, int64_t column, int32_t* high, int32_t* low) {
    __m512i above[16], below[16];
    for (int b = 0; b < 16; ++b) {
        __m512i most = _mm512_set1_epi16(INT16_MIN), least = _mm512_set1_epi16(INT16_MAX);
        for (int64_t r = 0; r < rows.count; ++r) {
            const uint16_t* from = reinterpret_cast<const uint16_t*>(rows.row[r]) + column + b * N;
            for (int i = 0; i < N; i += 32) {
                __m512i bits = load_halves<N>(from + i), sign = _mm512_srai_epi16(bits, 15);
                __m512i value = _mm512_ternarylogic_epi32(bits, sign, _mm512_set1_epi16(INT16_MAX), 0x78);
                most = _mm512_max_epi16(most, value);
                least = _mm512_min_epi16(least, value);
            }
        }
        // Of 16 numbers only the low words of lanes count.
        if constexpr (N == 16) most = _mm512_slli_epi32(most, 16), least = _mm512_slli_epi32(least, 16);
        above[b] = N > 16 ? pick_of_two<true>(most) : _mm512_srai_epi32(most, 16);
        below[b] = N > 16 ? pick_of_two<false>(least) : _mm512_srai_epi32(least, 16);
    }
    note_ranges<D>(reduce16<true>(above), reduce16<false>(below), 0xFFFF, high, low);
}

template <int N, bool MASKED>
inline void sixteen_of(Dtype dtype, const BoxRows& rows, int64_t column, const Statistics& s) {
    if (dtype == Dtype::fp32) {
        s.low ? sixteen_boxes<N, MASKED, true>(rows, column, s)
              : sixteen_boxes<N, MASKED, false>(rows, column, s);
    } else if (dtype == Dtype::bf16) {
        s.low ? sixteen_half_box_ranges<Dtype::bf16, N>(rows, column, s.high, s.low)
              : sixteen_half_boxes<Dtype::bf16, N>(rows, column, s.high);
    } else {
        s.low ? sixteen_half_box_ranges<Dtype::fp16, N>(rows, column, s.high, s.low)
              : sixteen_half_boxes<Dtype::fp16, N>(rows, column, s.high);
    }
}
#endif

// Adds as many whole boxes of a unit, from its first column on, as there are sixteen of, where that is
// faster; returns how many columns they have.
template <bool MASKED>
inline int64_t add_boxes(const Plan& p, const void* x, Dtype dtype, const Rectangle& unit,
                         const Statistics& s) {
#if defined(__AVX512BW__)
    const Grid& g = p.grid;
    if (g.block_rows * g.block_planes == 1) return 0;  // most formats
    int64_t size = g.block_columns;
    bool known = size == 16 || size == 32 || size == 64 || size == 128;
    // 16-bit numbers that are not finite are rare enough for the plain loops.
    if (!known || g.interleaved || unit.column % size || (MASKED && dtype != Dtype::fp32)) return 0;
    BoxRows rows;
    int64_t all = 0;
    p.for_unit_planes(unit, [&](const Rectangle& r) {
        all += r.rows;
        for (int64_t row = r.row; row < r.row + r.rows && rows.count < BoxRows::kMost; ++row)
            rows.row[rows.count++] = static_cast<const char*>(x) +
                                     index_of(g, r.plane, row, r.column) * dtype_bytes(dtype);
    });
    if (all != rows.count || all < 2) return 0;
    int64_t blocks = unit.columns / size / 16 * 16;
    for (int64_t b = 0; b < blocks; b += 16) {
        switch (size) {
            case 16: sixteen_of<16, MASKED>(dtype, rows, b * size, s.at(b)); break;
            case 32: sixteen_of<32, MASKED>(dtype, rows, b * size, s.at(b)); break;
            case 64: sixteen_of<64, MASKED>(dtype, rows, b * size, s.at(b)); break;
            case 128: sixteen_of<128, MASKED>(dtype, rows, b * size, s.at(b)); break;
        }
    }
    return blocks * size;
#else
    (void)p, (void)x, (void)dtype, (void)unit, (void)s;
    return 0;
#endif
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
