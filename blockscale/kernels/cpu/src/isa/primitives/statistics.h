// SPDX-License-Identifier: BSD-3-Clause
// What a block's scale is chosen from (numerics.md, 3.1 and 3.2), over a rectangle of elements.
// All of it is integer arithmetic on the bits of float32, so no order of reduction changes a bit.
#pragma once

#include "halves.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int32_t kNegativeInfinity = static_cast<int32_t>(0xFF800000u) ^ INT32_MAX;

// A part of one plane whose rows lie in one row of blocks.
struct Rectangle {
    int64_t plane, row, rows, column, columns;
};

// One entry for each block that a rectangle touches, in the order of the stored scale.
struct Statistics {
    int32_t* high;  // ordered(): the largest value, or the bits of the largest magnitude
    int32_t* low;   // ordered(): the smallest value; null if only magnitudes count
    uint8_t* odd;   // 1 where the block holds a NaN or an infinity, else 0
    int64_t* sum;   // of the t_i of section 3.2; null without means
    int64_t* count;
    bool bare;      // a range that is not widened to hold 0; its low is above its high where it is empty

    Statistics at(int64_t i) const {
        return {high + i, low ? low + i : nullptr, odd + i, sum ? sum + i : nullptr,
                count ? count + i : nullptr, bare};
    }
};

// What the results of n columns or blocks begin with; low may be null.
inline void reset(bool bare, int64_t n, int32_t* __restrict high, int32_t* __restrict low) {
    if (!bare) {
        memset(high, 0, n * sizeof(int32_t));
        if (low) memset(low, 0, n * sizeof(int32_t));
        return;
    }
    for (int64_t i = 0; i < n; ++i) high[i] = INT32_MIN, low[i] = INT32_MAX;
}

inline void reset(const Statistics& s, int64_t n) { reset(s.bare, n, s.high, s.low); }

// MASKED leaves NaN and infinities out, which the plain loops only let through to the result.
template <bool MASKED>
inline int32_t magnitude_bits(float x) {
    int32_t bits = to_bits(x) & INT32_MAX;
    return MASKED && bits >= kInfinity ? 0 : bits;
}

// `above` and `below` widened to hold x.
template <bool MASKED>
inline void widen_range(float x, int32_t* above, int32_t* below) {
    int32_t bits = to_bits(x), value = ordered(bits);
    bool counts = !MASKED || (bits & INT32_MAX) < kInfinity;
    int32_t up = counts ? value : INT32_MIN, down = counts ? value : INT32_MAX;
    *above = up > *above ? up : *above;
    *below = down < *below ? down : *below;
}

template <bool MASKED>
inline void run_magnitude(const float* x, int64_t n, int32_t* high) {
    int32_t found = *high;
    for (int64_t i = 0; i < n; ++i) {
        int32_t bits = magnitude_bits<MASKED>(x[i]);
        found = bits > found ? bits : found;
    }
    *high = found;
}

template <bool MASKED>
inline void run_range(const float* x, int64_t n, int32_t* high, int32_t* low) {
    int32_t above = *high, below = *low;
    for (int64_t i = 0; i < n; ++i) widen_range<MASKED>(x[i], &above, &below);
    *high = above;
    *low = below;
}

#if defined(__AVX512F__)
// Sixteen blocks of N elements at a time.
template <int N, bool MASKED, bool RANGE>
inline void sixteen_runs(const float* x, const Statistics& s) {
    __m512i above[16], below[16];
    for (int b = 0; b < 16; ++b) {
        __m512i high = _mm512_set1_epi32(RANGE ? INT32_MIN : 0), low = _mm512_set1_epi32(INT32_MAX);
        for (int i = 0; i < N; i += 16) {
            __m512i bits = _mm512_loadu_si512(x + b * N + i);
            __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX));
            __mmask16 finite = 0xFFFF;
            if constexpr (MASKED)
                finite = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(kInfinity));
            if constexpr (RANGE) {
                bits = ordered16(bits);
                high = _mm512_mask_max_epi32(high, finite, high, bits);
                low = _mm512_mask_min_epi32(low, finite, low, bits);
            } else {
                high = _mm512_mask_max_epi32(high, finite, high, size);
            }
        }
        above[b] = high;
        if constexpr (RANGE) below[b] = low;
    }
    _mm512_storeu_si512(s.high,
                        _mm512_max_epi32(_mm512_loadu_si512(s.high), reduce16<true>(above)));
    if constexpr (RANGE)
        _mm512_storeu_si512(s.low,
                            _mm512_min_epi32(_mm512_loadu_si512(s.low), reduce16<false>(below)));
}
#endif

// As many blocks of N as there are sixteen of, where that is faster; returns how many.
template <int N, bool MASKED>
inline int64_t many_runs(const float* x, int64_t blocks, const Statistics& s) {
    int64_t b = 0;
#if defined(__AVX512F__)
    for (; N <= (s.low ? 32 : 64) && b + 16 <= blocks; b += 16)
        s.low ? sixteen_runs<N, MASKED, true>(x + b * N, s.at(b))
              : sixteen_runs<N, MASKED, false>(x + b * N, s.at(b));
#else
    (void)x, (void)blocks, (void)s;
#endif
    return b;
}

// Whole blocks of N, a constant: no loop control, and the reductions of neighbours overlap.
template <int N, bool MASKED>
inline void runs_of(const float* x, int64_t blocks, const Statistics& s) {
    for (int64_t b = many_runs<N, MASKED>(x, blocks, s); b < blocks; ++b) {
        if (s.low) {
            run_range<MASKED>(x + b * N, N, s.high + b, s.low + b);
        } else {
            run_magnitude<MASKED>(x + b * N, N, s.high + b);
        }
    }
}

inline int64_t index_of(const Grid& g, int64_t plane, int64_t row, int64_t column) {
    return (plane * g.rows + row) * g.columns + column;
}

// Asks for n numbers that are read soon: rows of a strip lie apart, which no hardware foresees.
inline void fetch(const void* x, Dtype dtype, int64_t first, int64_t n) {
    const char* from = static_cast<const char*>(x) + first * dtype_bytes(dtype);
    for (int64_t i = 0; i < n * dtype_bytes(dtype); i += 64) __builtin_prefetch(from + i);
}

// One result per column; two rows at a time, which may be the same one.
template <bool MASKED>
inline void add_rows(const float* x, const float* y, int64_t n, int32_t* __restrict high,
                     int32_t* __restrict low) {
    if (low) {
        for (int64_t i = 0; i < n; ++i) {
            int32_t above = high[i], below = low[i];
            widen_range<MASKED>(x[i], &above, &below);
            widen_range<MASKED>(y[i], &above, &below);
            high[i] = above;
            low[i] = below;
        }
    } else {
        for (int64_t i = 0; i < n; ++i) {
            int32_t a = magnitude_bits<MASKED>(x[i]), b = magnitude_bits<MASKED>(y[i]);
            int32_t above = a > b ? a : b;
            high[i] = above > high[i] ? above : high[i];
        }
    }
}

// Rows [row, row + 2) of a rectangle, or its last one, from `column` on; and asks for the next two.
template <bool MASKED>
inline void add_two_rows(const Grid& g, const void* x, Dtype dtype, const Rectangle& r, int64_t row,
                         int64_t column, int64_t n, int32_t* high, int32_t* low) {
    alignas(64) float buffer[2][kChunk];
    int64_t end = r.row + r.rows, second = row + 1 < end ? row + 1 : row;
    int64_t first = index_of(g, r.plane, row, column);
    for (int64_t next = row + 2; next < row + 4 && next < end; ++next)
        fetch(x, dtype, first + (next - row) * g.columns, n);
    add_rows<MASKED>(widen(x, dtype, first, n, buffer[0]),
                     widen(x, dtype, first + (second - row) * g.columns, n, buffer[1]), n, high,
                     low);
}

#if defined(__AVX512BW__)
// The largest magnitudes of n columns of a rectangle of 16-bit numbers, as floats in `buffer`.
inline void half_columns(const Grid& g, const void* x, Dtype dtype, const Rectangle& r,
                         int64_t column, int64_t n, float* buffer) {
    alignas(64) uint16_t found[kChunk];
    memset(found, 0, n * sizeof(uint16_t));
    int64_t end = r.row + r.rows;
    for (int64_t row = r.row; row < end; row += 2) {
        int64_t first = index_of(g, r.plane, row, column), next = row + 1 < end ? g.columns : 0;
        for (int64_t ahead = row + 2; ahead < row + 4 && ahead < end; ++ahead)
            fetch(x, dtype, first + (ahead - row) * g.columns, n);
        const uint16_t* from = static_cast<const uint16_t*>(x) + first;
        half_rows(from, from + next, n, found);
    }
    const float* sizes = widen(found, dtype, 0, n, buffer);
    if (sizes != buffer) memcpy(buffer, sizes, n * sizeof(float));
}
#endif

template <bool MASKED>
inline void row_statistics(const Grid& g, const float* x, int64_t column, int64_t n,
                           const Statistics& s) {
    int64_t size = g.block_columns, whole = n / size;
    if (column % size == 0 && (size == 16 || size == 32 || size == 64 || size == 128)) {
        switch (size) {
            case 16: runs_of<16, MASKED>(x, whole, s); break;
            case 32: runs_of<32, MASKED>(x, whole, s); break;
            case 64: runs_of<64, MASKED>(x, whole, s); break;
            case 128: runs_of<128, MASKED>(x, whole, s); break;
        }
        x += whole * size, column += whole * size, n -= whole * size;
        if (n == 0) return;
        return row_statistics<MASKED>({g.planes, g.rows, g.columns, g.block_planes, g.block_rows, n},
                                      x, 0, n, s.at(whole));
    }
    for_blocks(column, n, size, [&](int64_t i, int64_t length, int64_t block) {
        if (s.low) {
            run_range<MASKED>(x + i, length, s.high + block, s.low + block);
        } else {
            run_magnitude<MASKED>(x + i, length, s.high + block);
        }
    });
}

// The largest (smallest) of each eight of n numbers and what is found so far.
template <bool LARGEST>
inline void fold_eights(const int32_t* x, int64_t n, int32_t* found) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 128 <= n; i += 128) {
        __m512i* to = reinterpret_cast<__m512i*>(found + i / 8);
        _mm512_storeu_si512(to, pick<LARGEST>(_mm512_loadu_si512(to), reduce_eights<LARGEST>(x + i)));
    }
#endif
    for (; i < n; i += 8) {
        int32_t best = found[i / 8];
        for (int64_t k = i; k < smaller(i + 8, n); ++k)
            best = (LARGEST ? x[k] > best : x[k] < best) ? x[k] : best;
        found[i / 8] = best;
    }
}

// The results of columns -> those of their blocks.
inline void fold_lanes(const Grid& g, int64_t column, int64_t n, const int32_t* high,
                       const int32_t* low, const Statistics& s) {
    if (g.block_columns == 8 && column % 8 == 0) {
        fold_eights<true>(high, n, s.high);
        if (s.low) fold_eights<false>(low, n, s.low);
        return;
    }
    if (!s.low) {  // bits of magnitudes are floats again
        alignas(64) float sizes[kChunk];
        memcpy(sizes, high, n * sizeof(float));
        return row_statistics<false>(g, sizes, column, n, s);
    }
    for_blocks(column, n, g.block_columns, [&](int64_t i, int64_t length, int64_t b) {
        int32_t above = s.high[b], below = s.low[b];
        for (int64_t k = i; k < i + length; ++k) above = high[k] > above ? high[k] : above;
        for (int64_t k = i; k < i + length; ++k) below = low[k] < below ? low[k] : below;
        s.high[b] = above;
        s.low[b] = below;
    });
}

// Blocks of one column: row after row, as they lie in memory.
template <bool MASKED>
inline void add_columns(const Grid& g, const void* x, Dtype dtype, const Rectangle& r,
                        const Statistics& s) {
#if defined(__AVX512BW__)
    if (!MASKED && !s.low && dtype != Dtype::fp32 && r.rows > 1) {
        for (int64_t c = 0; c < r.columns; c += kChunk) {
            alignas(64) float sizes[kChunk];
            int64_t n = smaller(kChunk, r.columns - c);
            half_columns(g, x, dtype, r, r.column + c, n, sizes);
            add_rows<false>(sizes, sizes, n, s.high + c, nullptr);
        }
        return;
    }
#endif
    for (int64_t row = r.row; row < r.row + r.rows; row += 2) {
        for (int64_t c = 0; c < r.columns; c += kChunk)
            add_two_rows<MASKED>(g, x, dtype, r, row, r.column + c, smaller(kChunk, r.columns - c),
                                 s.high + c, s.low ? s.low + c : nullptr);
    }
}

// Adds a rectangle to the statistics of its blocks.
template <bool MASKED>
inline void add_rectangle(const Grid& g, const void* x, Dtype dtype, const Rectangle& r,
                          const Statistics& s, int64_t ahead) {
    if (g.block_columns == 1) return add_columns<MASKED>(g, x, dtype, r, s);
    alignas(64) float buffer[kChunk];
    alignas(64) int32_t high[kChunk], low[kChunk];
    for (int64_t c = 0; c < r.columns; c += kChunk) {
        int64_t n = smaller(kChunk, r.columns - c), column = r.column + c;
        int64_t block = column / g.block_columns - r.column / g.block_columns;
        if (r.rows == 1) {
            int64_t first = index_of(g, r.plane, r.row, column);
            if (ahead) fetch(x, dtype, first + ahead, n);
#if defined(__AVX512BW__)
            if (!MASKED && dtype != Dtype::fp32) {
                const uint16_t* from = static_cast<const uint16_t*>(x) + first;
                int32_t* to = s.high + block;
                if (s.low) {
                    dtype == Dtype::bf16
                        ? half_ranges<Dtype::bf16>(from, column, n, g.block_columns, to, s.low + block)
                        : half_ranges<Dtype::fp16>(from, column, n, g.block_columns, to, s.low + block);
                    continue;
                }
                dtype == Dtype::bf16
                    ? half_statistics<Dtype::bf16>(from, column, n, g.block_columns, to)
                    : half_statistics<Dtype::fp16>(from, column, n, g.block_columns, to);
                continue;
            }
#endif
            row_statistics<MASKED>(g, widen(x, dtype, first, n, buffer), column, n, s.at(block));
            continue;
        }
#if defined(__AVX512BW__)
        if (!MASKED && !s.low && dtype != Dtype::fp32) {
            half_columns(g, x, dtype, r, column, n, buffer);
            memcpy(high, buffer, n * sizeof(int32_t));
            fold_lanes(g, column, n, high, nullptr, s.at(block));
            continue;
        }
#endif
        reset(s.bare, n, high, s.low ? low : nullptr);
        for (int64_t row = r.row; row < r.row + r.rows; row += 2)
            add_two_rows<MASKED>(g, x, dtype, r, row, column, n, high, s.low ? low : nullptr);
        fold_lanes(g, column, n, high, low, s.at(block));
    }
}

// Notes which of n blocks let a NaN or an infinity through to their result; whether any did.
inline bool find_odd(const Statistics& s, int64_t n) {
    int32_t above = 0, below = 0;
    for (int64_t i = 0; i < n; ++i) above = s.high[i] > above ? s.high[i] : above;
    for (int64_t i = 0; s.low && i < n; ++i) below = s.low[i] < below ? s.low[i] : below;
    if (above < kInfinity && below > kNegativeInfinity) return false;
    for (int64_t i = 0; i < n; ++i)
        s.odd[i] = s.high[i] >= kInfinity || (s.low && s.low[i] <= kNegativeInfinity);
    return true;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
