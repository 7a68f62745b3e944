// SPDX-License-Identifier: BSD-3-Clause
// The sums from which the scales of ternary and binary blocks come (numerics.md, 3.2).
#pragma once

#include "statistics.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// t_i of section 3.2: two factors, because 2^156 is not a float32. The second is 1 where one will do.
struct Shift {
    float first, second;
};

#if defined(__AVX512F__)
// The same as the loop in run_sum for all whole vectors; returns how many elements that were.
// CHOSEN: not all of them count.
template <bool MASKED, bool CHOSEN, Dtype D>
inline int64_t sum_vectors(const void* x, int64_t from, int64_t n, Shift shift, float above,
                        int64_t* sum, int64_t* count) {
    const __m512 first = _mm512_set1_ps(shift.first), second = _mm512_set1_ps(shift.second);
    const bool twice = shift.second != 1.0f;
    __m512i both = _mm512_setzero_si512(), odd = both, used = both;
    auto terms = [&](int64_t i) BLOCKSCALE_INLINE_LAMBDA {
        __m512 size = _mm512_abs_ps(load16<D>(x, from + i, 0xFFFF)), t = _mm512_mul_ps(size, first);
        if (twice) t = _mm512_mul_ps(t, second);
        if constexpr (!MASKED && !CHOSEN) return _mm512_cvttps_epi32(t);
        __mmask16 use = _mm512_cmp_ps_mask(size, _mm512_set1_ps(above), _CMP_GT_OQ);
        if constexpr (MASKED)
            use = _mm512_mask_cmp_ps_mask(use, size, _mm512_set1_ps(kFltMax), _CMP_LE_OQ);
        used = _mm512_mask_sub_epi32(used, use, used, _mm512_set1_epi32(-1));
        return _mm512_maskz_cvttps_epi32(use, t);
    };
    // Pairs of terms are below 2^32. What 64-bit lanes add up to, less the upper halves that were
    // added by themselves, is the sum of the lower ones, whatever overflowed on the way.
    auto add = [&](__m512i pairs) BLOCKSCALE_INLINE_LAMBDA {
        both = _mm512_add_epi64(both, pairs);
        odd = _mm512_add_epi64(odd, _mm512_srli_epi64(pairs, 32));
    };
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) add(_mm512_add_epi32(terms(i), terms(i + 16)));
    for (; i + 16 <= n; i += 16) add(terms(i));
    both = _mm512_sub_epi64(both, _mm512_slli_epi64(odd, 32));
    *sum += _mm512_reduce_add_epi64(_mm512_add_epi64(both, odd));
    *count += MASKED || CHOSEN ? _mm512_reduce_add_epi32(used) : i;
    return i;
}

template <bool MASKED>
inline int64_t wide_sum(const void* x, Dtype dtype, int64_t from, int64_t n, Shift shift,
                        float above, int64_t* sum, int64_t* count) {
    int64_t done = 0;
    with_dtype(dtype, [&]<Dtype D>() {
        done = above < 0.0f
                   ? sum_vectors<MASKED, false, D>(x, from, n, shift, above, sum, count)
                   : sum_vectors<MASKED, true, D>(x, from, n, shift, above, sum, count);
    });
    return done;
}
#endif

template <bool MASKED>
inline void run_sum(const float* x, int64_t n, Shift shift, float above, int64_t* sum,
                    int64_t* count) {
    int64_t total = 0, chosen = 0;
    for (int64_t i = 0; i < n; ++i) {
        int32_t bits = to_bits(x[i]) & INT32_MAX;
        float size = from_bits(bits);
        bool use = size > above && (!MASKED || bits < kInfinity);
        float t = use ? size * shift.first * shift.second : 0.0f;
        total += static_cast<int32_t>(t);
        chosen += use;
    }
    *sum += total;
    *count += chosen;
}

// Adds the sums over elements whose magnitude is above `above[block]` (-1: all).
template <bool MASKED>
inline void add_sums(const Grid& g, const void* x, Dtype dtype, const Rectangle& r,
                     const Shift* shifts, const float* above, const Statistics& s) {
    alignas(64) float buffer[kChunk];
    for (int64_t row = r.row; row < r.row + r.rows; ++row) {
        for (int64_t c = 0; c < r.columns; c += kChunk) {
            int64_t n = smaller(kChunk, r.columns - c), column = r.column + c;
            int64_t at = column / g.block_columns - r.column / g.block_columns;
            int64_t first = index_of(g, r.plane, row, column);
#if !defined(__AVX512F__)
            const float* values = widen(x, dtype, first, n, buffer);
#endif
            for_blocks(column, n, g.block_columns, [&](int64_t i, int64_t length, int64_t b) {
                b += at;
#if defined(__AVX512F__)
                int64_t done = wide_sum<MASKED>(x, dtype, first + i, length, shifts[b], above[b],
                                                s.sum + b, s.count + b);
                i += done, length -= done;
                const float* left = widen(x, dtype, first + i, length, buffer);
#else
                const float* left = values + i;
#endif
                run_sum<MASKED>(left, length, shifts[b], above[b], s.sum + b, s.count + b);
            });
        }
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
