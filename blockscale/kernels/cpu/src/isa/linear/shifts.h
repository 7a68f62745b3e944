// SPDX-License-Identifier: BSD-3-Clause
// Integer sums of a tile -> codes, by rounding shifts: blockscale/ops/integer/shifts.py, with a shift for each
// output. Nothing here is a float.
#pragma once

#include "epilogue.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

template <class W>
struct Unsigned;
template <>
struct Unsigned<int32_t> {
    using type = uint32_t;
};
template <>
struct Unsigned<int64_t> {
    using type = uint64_t;
};

// Whether floor + rest * 2^-right becomes floor + 1; half: 2^(right - 1), or 1 where nothing was cut off.
template <class W>
BLOCKSCALE_INLINE bool goes_up(Rounding rounding, W floor, W rest, W half) {
    switch (rounding) {
        case Rounding::nearest_even: return rest > half - (floor & 1);
        case Rounding::nearest_away: return rest > half - (floor >= 0);
        case Rounding::toward_zero: return (rest > 0) & (floor < 0);
        case Rounding::up: return rest > 0;
        case Rounding::down: return false;
        case Rounding::stochastic: break;
    }
    __builtin_unreachable();
}

// Sums of a tile, and what they lack yet.
struct TileEnds {
    const int32_t* tile;               // [row][32]
    const int32_t* rows = nullptr;     // of a row all sums lack the same: [row * each]
    int64_t each = 0;
    const int32_t* columns = nullptr;  // so do those of an output: [32]
};

// Rows of a tile [count][32] -> y [rows, n] of Y. EVEN: half to even; LEFT: some output is shifted to the left.
template <class W, class Y, bool EVEN, bool LEFT>
void end_rows(const Shifts& s, int64_t n, const TileEnds& from, Place at, Y* y) {
    const int32_t* tile = from.tile;
    using U = typename Unsigned<W>::type;
    int64_t size = smaller(kPanel, n - at.column), each = ceil_div(n, kPanel) * kPanel;
    const W* bias = static_cast<const W*>(s.ends) + at.column;
    const W *right = bias + each, *half = right + each, *most = half + each, *left = most + each;
    const W low = static_cast<W>(s.low - s.zero), high = static_cast<W>(s.high - s.zero);
    const W zero = static_cast<W>(s.zero);
    const Rounding rounding = EVEN ? Rounding::nearest_even : s.rounding;
    for (int64_t r = 0; r < at.count; ++r) {
        int64_t first = (at.row + r) * n + at.column;
        alignas(64) W sums[kPanel], before[kPanel] = {};
        alignas(64) Y codes[kPanel];
        if (s.before) memcpy(before, static_cast<const W*>(s.before) + first, size * sizeof(W));
        uint32_t row = from.rows ? from.rows[r * from.each] : 0;
        for (int i = 0; i < kPanel; ++i) {  // unsigned: they may wrap on their way to one that fits
            uint32_t of_tile = tile[r * kPanel + i] + row + (from.columns ? from.columns[i] : 0);
            U sum = static_cast<U>(static_cast<W>(static_cast<int32_t>(of_tile))) + static_cast<U>(bias[i]);
            sums[i] = static_cast<W>(sum + (static_cast<U>(before[i]) << s.before_left));
        }
        for (int i = 0; i < kPanel; ++i) {
            // What is cut off is compared and not added to the sum, which could leave W.
            W steps = sums[i] >> right[i];
            W rest = static_cast<W>(static_cast<U>(sums[i]) - (static_cast<U>(steps) << right[i]));
            steps += goes_up(rounding, steps, rest, half[i]);
            if constexpr (LEFT) {
                steps = steps < -most[i] ? -most[i] : steps > most[i] ? most[i] : steps;
                steps = static_cast<W>(static_cast<U>(steps) << left[i]);
            }
            steps = steps < low ? low : steps > high ? high : steps;
            codes[i] = static_cast<Y>(steps + zero);
        }
        if (size == kPanel) {
            copy<kPanel * sizeof(Y)>(y + first, codes);
        } else {
            memcpy(y + first, codes, size * sizeof(Y));
        }
    }
}

#if defined(__AVX512BW__)
// Two vectors of codes within what Y holds, in order.
inline void store_both(const __m512i (&steps)[2], int8_t* y) {
    __m512i words = _mm512_packs_epi32(steps[0], steps[1]), bytes = _mm512_packs_epi16(words, words);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
    bytes = _mm512_permutexvar_epi32(order, bytes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(bytes));
}
inline void store_both(const __m512i (&steps)[2], uint8_t* y) {
    __m512i words = _mm512_packs_epi32(steps[0], steps[1]), bytes = _mm512_packus_epi16(words, words);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
    bytes = _mm512_permutexvar_epi32(order, bytes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(bytes));
}
inline void store_both(const __m512i (&steps)[2], int16_t* y) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    __m512i words = _mm512_packs_epi32(steps[0], steps[1]);
    _mm512_storeu_si512(y, _mm512_permutexvar_epi64(order, words));
}
inline void store_both(const __m512i (&steps)[2], int32_t* y) {
    _mm512_storeu_si512(y, steps[0]), _mm512_storeu_si512(y + 16, steps[1]);
}

// end_rows of int32, half to even, in one loop: from the sums to the codes no number goes through memory.
template <class Y, bool LEFT>
void end_vectors(const Shifts& s, int64_t n, const TileEnds& from, Place at, Y* y) {
    int64_t size = smaller(kPanel, n - at.column), each = ceil_div(n, kPanel) * kPanel;
    const int32_t* ends = static_cast<const int32_t*>(s.ends) + at.column;
    auto load = [](const int32_t* x, int h) { return _mm512_loadu_si512(x + 16 * h); };
    const __m512i one = _mm512_set1_epi32(1), zero = _mm512_set1_epi32(static_cast<int32_t>(s.zero));
    const __m512i low = _mm512_set1_epi32(static_cast<int32_t>(s.low - s.zero));
    const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(s.high - s.zero));
    __m512i bias[2], right[2], cut[2], half[2], most[2], left[2];
    for (int h = 0; h < 2; ++h) {
        bias[h] = load(ends, h), right[h] = load(ends + each, h), half[h] = load(ends + 2 * each, h);
        if (from.columns) bias[h] = _mm512_add_epi32(bias[h], load(from.columns, h));
        cut[h] = _mm512_sub_epi32(_mm512_sllv_epi32(one, right[h]), one);
        most[h] = load(ends + 3 * each, h), left[h] = load(ends + 4 * each, h);
    }
    const __mmask16 lanes[2] = {static_cast<__mmask16>((uint32_t{1} << smaller(size, 16)) - 1),
                                static_cast<__mmask16>((uint32_t{1} << larger(size - 16, 0)) - 1)};
    for (int64_t r = 0; r < at.count; ++r) {
        int64_t first = (at.row + r) * n + at.column;
        const __m512i row = _mm512_set1_epi32(from.rows ? from.rows[r * from.each] : 0);
        __m512i steps[2];
        for (int h = 0; h < 2; ++h) {
            __m512i sum = _mm512_add_epi32(load(from.tile + r * kPanel, h), _mm512_add_epi32(bias[h], row));
            if (s.before) {
                auto* before = static_cast<const int32_t*>(s.before) + first + 16 * h;
                __m512i earlier = _mm512_maskz_loadu_epi32(lanes[h], before);
                sum = _mm512_add_epi32(sum, _mm512_sll_epi32(earlier, _mm_cvtsi32_si128(s.before_left)));
            }
            // What is cut off is compared and not added to the sum, which could leave int32.
            __m512i whole = _mm512_srav_epi32(sum, right[h]), rest = _mm512_and_si512(sum, cut[h]);
            __m512i limit = _mm512_sub_epi32(half[h], _mm512_and_si512(whole, one));
            whole = _mm512_mask_add_epi32(whole, _mm512_cmpgt_epi32_mask(rest, limit), whole, one);
            if constexpr (LEFT) {
                whole = _mm512_max_epi32(whole, _mm512_sub_epi32(_mm512_setzero_si512(), most[h]));
                whole = _mm512_sllv_epi32(_mm512_min_epi32(whole, most[h]), left[h]);
            }
            whole = _mm512_min_epi32(_mm512_max_epi32(whole, low), high);
            steps[h] = _mm512_add_epi32(whole, zero);
        }
        if (size == kPanel) {
            store_both(steps, y + first);
        } else {
            alignas(64) Y codes[kPanel];
            store_both(steps, codes);
            memcpy(y + first, codes, size * sizeof(Y));
        }
    }
}
#endif

template <class W, class Y>
void end_as(const Shifts& s, int64_t n, const TileEnds& from, Place at, void* y) {
    const W* left = static_cast<const W*>(s.ends) + 4 * ceil_div(n, kPanel) * kPanel + at.column;
    bool any = false, even = s.rounding == Rounding::nearest_even;
    for (int i = 0; i < kPanel; ++i) any |= left[i] != 0;
    auto run = even ? (any ? end_rows<W, Y, true, true> : end_rows<W, Y, true, false>)
                    : (any ? end_rows<W, Y, false, true> : end_rows<W, Y, false, false>);
#if defined(__AVX512BW__)
    if constexpr (sizeof(W) == 4)
        if (even) run = any ? end_vectors<Y, true> : end_vectors<Y, false>;
#endif
    run(s, n, from, at, static_cast<Y*>(y));
}

template <class W>
void end_in(const Shifts& s, int64_t n, const TileEnds& from, Place at, void* y) {
    switch (s.type) {
        case Whole::i8: return end_as<W, int8_t>(s, n, from, at, y);
        case Whole::u8: return end_as<W, uint8_t>(s, n, from, at, y);
        case Whole::i16: return end_as<W, int16_t>(s, n, from, at, y);
        case Whole::i32: return end_as<W, W>(s, n, from, at, y);
    }
    __builtin_unreachable();
}

// The panel's rows of a tile of sums -> y.
void end_tile(const Shifts& s, int64_t n, const TileEnds& from, Place at, void* y) {
    s.wide ? end_in<int64_t>(s, n, from, at, y) : end_in<int32_t>(s, n, from, at, y);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
