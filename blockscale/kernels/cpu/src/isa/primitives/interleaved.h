// SPDX-License-Identifier: BSD-3-Clause
// Strips of columns whose blocks lie interleaved (grid.h): statistics of columns become those of
// blocks, and scales of blocks those of columns, which then are blocks of their own.
#pragma once

#include "means.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Call body(first, length, block) for the runs of one block among the first n columns of a strip.
template <class Body>
BLOCKSCALE_INLINE void for_runs(const Interleaved& in, int64_t n, Body body) {
    for (int64_t line = 0; line < n; line += in.line) {
        int64_t end = smaller(line + in.line, n);
        for (int64_t i = line; i < end; i += in.run)
            body(i, smaller(in.run, end - i), in.block[i / in.each]);
    }
}

constexpr int64_t kLongRun = 8;  // runs of that many columns are worth a loop each

// The largest and smallest of each of n columns or runs, over all that is added, begun as `blocks` are.
struct ColumnStatistics {
    ColumnStatistics(int64_t n, const Statistics& blocks)
        : high(n), low(blocks.low ? n : 1), view{.high = high, .low = blocks.low ? low.get() : nullptr,
                                                 .odd = nullptr, .sum = nullptr, .count = nullptr,
                                                 .bare = blocks.bare} {
        reset(view, n);
    }

    Array<int32_t> high, low;
    Statistics view;
};

// Results of n columns or runs, one after another -> those of their blocks.
inline void fold_each(const int32_t* block, int64_t n, const Statistics& from, const Statistics& s) {
    for (int64_t i = 0; i < n; ++i) {
        int32_t* found = s.high + block[i];
        *found = from.high[i] > *found ? from.high[i] : *found;
    }
    for (int64_t i = 0; s.low && i < n; ++i) {
        int32_t* found = s.low + block[i];
        *found = from.low[i] < *found ? from.low[i] : *found;
    }
}

// The results of n columns -> those of their blocks.
inline void fold_columns(const Interleaved& in, int64_t n, const Statistics& from,
                         const Statistics& s) {
    if (in.run < kLongRun) return fold_each(in.block, n, from, s);
    if (in.each > 1) {
        Grid row{1, 1, n, 1, 1, in.each};
        ColumnStatistics runs(n / in.each, s);
        int64_t step = kChunk / in.each * in.each;
        for (int64_t c = 0; c < n; c += step)
            fold_lanes(row, c, smaller(step, n - c), from.high + c, s.low ? from.low + c : nullptr,
                       runs.view.at(c / in.each));
        return fold_each(in.block, n / in.each, runs.view, s);
    }
    for_runs(in, n, [&](int64_t first, int64_t length, int64_t block) {
        int32_t above = s.high[block], below = 0;
        const int32_t *high = from.high + first, *low = from.low + first;
        for (int64_t i = 0; i < length; ++i) above = high[i] > above ? high[i] : above;
        s.high[block] = above;
        if (!s.low) return;
        below = s.low[block];
        for (int64_t i = 0; i < length; ++i) below = low[i] < below ? low[i] : below;
        s.low[block] = below;
    });
}

// The sums of add_sums over a rectangle that is a strip wide.
template <bool MASKED>
inline void add_interleaved_sums(const Grid& g, const void* x, Dtype dtype, const Rectangle& r,
                                 const Shift* shifts, const float* above, const Statistics& s) {
    alignas(64) float buffer[kChunk];
    const int32_t* blocks = g.interleaved->block;
    for (int64_t row = r.row; row < r.row + r.rows; ++row) {
        for (int64_t c = 0; c < r.columns; c += kChunk) {
            int64_t n = smaller(kChunk, r.columns - c);
            const float* values = widen(x, dtype, index_of(g, r.plane, row, r.column + c), n, buffer);
            for (int64_t i = 0; i < n; ++i) {
                int64_t b = blocks[(c + i) / g.interleaved->each];
                run_sum<MASKED>(values + i, 1, shifts[b], above[b], s.sum + b, s.count + b);
            }
        }
    }
}

// One number of each block -> of each column, or of each run where `each` is one.
template <class T>
inline void spread(const Interleaved& in, int64_t n, const T* from, T* __restrict to) {
    if (in.run < kLongRun || in.each > 1) {
        for (int64_t i = 0; i < n / in.each; ++i) to[i] = from[in.block[i]];
        return;
    }
    for_runs(in, n, [&](int64_t first, int64_t length, int64_t block) {
        T value = from[block];
        int64_t i = first, end = first + length;
        for (; i + kLongRun <= end; i += kLongRun)
            for (int64_t k = 0; k < kLongRun; ++k) to[i + k] = value;
        for (; i < end; ++i) to[i] = value;
    });
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
