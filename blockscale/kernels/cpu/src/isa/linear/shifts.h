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

// Rows of a tile [count][32] -> y [rows, n] of Y. EVEN: half to even; LEFT: some output is shifted to the left.
template <class W, class Y, bool EVEN, bool LEFT>
void end_rows(const Shifts& s, int64_t n, const int32_t* tile, Place at, Y* y) {
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
        for (int i = 0; i < kPanel; ++i) {  // unsigned: they may wrap on their way to one that fits
            U sum = static_cast<U>(static_cast<W>(tile[r * kPanel + i])) + static_cast<U>(bias[i]);
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

template <class W, class Y>
void end_as(const Shifts& s, int64_t n, const int32_t* tile, Place at, void* y) {
    const W* left = static_cast<const W*>(s.ends) + 4 * ceil_div(n, kPanel) * kPanel + at.column;
    bool any = false, even = s.rounding == Rounding::nearest_even;
    for (int i = 0; i < kPanel; ++i) any |= left[i] != 0;
    auto run = even ? (any ? end_rows<W, Y, true, true> : end_rows<W, Y, true, false>)
                    : (any ? end_rows<W, Y, false, true> : end_rows<W, Y, false, false>);
    run(s, n, tile, at, static_cast<Y*>(y));
}

template <class W>
void end_in(const Shifts& s, int64_t n, const int32_t* tile, Place at, void* y) {
    switch (s.type) {
        case Whole::i8: return end_as<W, int8_t>(s, n, tile, at, y);
        case Whole::u8: return end_as<W, uint8_t>(s, n, tile, at, y);
        case Whole::i16: return end_as<W, int16_t>(s, n, tile, at, y);
        case Whole::i32: return end_as<W, W>(s, n, tile, at, y);
    }
    __builtin_unreachable();
}

// The panel's rows of a tile of sums -> y.
void end_tile(const Shifts& s, int64_t n, const int32_t* tile, Place at, void* y) {
    s.wide ? end_in<int64_t>(s, n, tile, at, y) : end_in<int32_t>(s, n, tile, at, y);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
