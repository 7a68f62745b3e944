// SPDX-License-Identifier: BSD-3-Clause
// Integers from memory, and rounding shifts to codes: blockscale/ops/integer/shifts.py.
#pragma once

#include "../../fused/integer.h"
#include "../primitives/plan.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Call body(a null pointer of the type).
template <class Body>
inline void with_type(Whole type, Body body) {
    switch (type) {
        case Whole::i8: return body(static_cast<const int8_t*>(nullptr));
        case Whole::u8: return body(static_cast<const uint8_t*>(nullptr));
        case Whole::i16: return body(static_cast<const int16_t*>(nullptr));
        case Whole::i32: return body(static_cast<const int32_t*>(nullptr));
    }
    __builtin_unreachable();
}

inline int64_t bytes_of(Whole type) {
    return type == Whole::i32 ? 4 : type == Whole::i16 ? 2 : 1;
}

// sum * 2^-shift for 1 <= shift < bits of W, half to even.
template <class W>
BLOCKSCALE_INLINE W shifted(W sum, int32_t shift) {
    W odd = (sum >> shift) & 1;
    return (sum + ((W(1) << (shift - 1)) - 1) + odd) >> shift;
}

// Codes of sums [n]. W: int32_t holds |sum| < 2^30 and, times 2^-shift for a negative shift, too.
template <class W, class Y>
inline void end_as(const Ending& end, const W* sums, int64_t n, Y* __restrict y) {
    constexpr int32_t most = sizeof(W) * 8 - 2;
    W low = end.low - end.zero, high = end.high - end.zero;
    int32_t zero = end.zero, shift = smaller(end.shift, most);
    auto store = [&](int64_t i, W steps) BLOCKSCALE_INLINE_LAMBDA {
        steps = steps < low ? low : steps > high ? high : steps;
        y[i] = static_cast<Y>(static_cast<int32_t>(steps) + zero);
    };
    if (shift > 0) {
        for (int64_t i = 0; i < n; ++i) store(i, shifted<W>(sums[i], shift));
    } else if (sizeof(W) == 4) {
        for (int64_t i = 0; i < n; ++i) store(i, sums[i] << -shift);
    } else {  // what is beyond any code stays so
        int32_t left = smaller(-shift, 31);
        W far = W(1) << 17;
        for (int64_t i = 0; i < n; ++i) {
            W sum = sums[i] < -far ? -far : sums[i] > far ? far : sums[i];
            store(i, sum << left);
        }
    }
}

// To y from `first` on.
template <class W>
inline void end(const Ending& to, const W* sums, int64_t first, int64_t n) {
    char* y = static_cast<char*>(to.y) + first * bytes_of(to.type);
    switch (to.type) {
        case Whole::i8: return end_as(to, sums, n, reinterpret_cast<int8_t*>(y));
        case Whole::u8: return end_as(to, sums, n, reinterpret_cast<uint8_t*>(y));
        case Whole::i16: return end_as(to, sums, n, reinterpret_cast<int16_t*>(y));
        case Whole::i32: break;
    }
    __builtin_unreachable();
}

// Whether int32 is wide enough for sums up to `largest`, shifted.
inline bool narrow(int64_t largest, int32_t shift) {
    return shift > -30 && (largest << larger(-shift, 0)) < (int64_t(1) << 30) &&
           largest < (int64_t(1) << 30);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
