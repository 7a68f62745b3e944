// SPDX-License-Identifier: BSD-3-Clause
// Register tiles by vpdpbusd: 64 products of an unsigned and a signed byte, summed by fours.
#pragma once

#include "tile.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// 12 rows times 2 vectors of outputs are 24 sums, of which 8 hide a dot product's latency. Where
// blocks end, half as many leave a register for the float32 sum beside each.
constexpr int64_t tile_rows(Blocks blocks) { return blocks == Blocks::none ? 12 : 6; }

// Separate sums of one output, so that few rows do not wait for one another.
constexpr int separate(int rows, Blocks blocks) {
    return blocks != Blocks::none ? 1 : rows == 1 ? 4 : rows <= 3 ? 2 : 1;
}

template <int R, int U>
struct Sums {
    __m512i of[U][R][2];
};

// sum += w · x by fours. Not the intrinsic: of 24 sums in a loop GCC 12 keeps half on the stack then,
// and moves them there and back, though registers suffice.
inline void dot(__m512i& sum, __m512i w, __m512i x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

// One step: 4 codes of each of 32 outputs, held in two vectors, times those of R rows.
template <int R, int U>
inline void dot_step(Sums<R, U>& sums, int u, __m512i w0, __m512i w1, const int8_t* x) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        __m512i four = _mm512_set1_epi32(load_32(x + r * kCodes));
        dot(sums.of[u][r][0], w0, four);
        dot(sums.of[u][r][1], w1, four);
    }
}

template <int R, int U, bool NIBBLES>
inline void dot_chunk(Sums<R, U>& sums, const uint8_t* w, const int8_t* x) {
    if constexpr (NIBBLES) {
        const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; ++pair) {
            __m512i w0 = _mm512_loadu_si512(w + pair * 128);
            __m512i w1 = _mm512_loadu_si512(w + pair * 128 + 64);
            dot_step(sums, 2 * pair % U, _mm512_and_si512(w0, low), _mm512_and_si512(w1, low),
                     x + 8 * pair);
            dot_step(sums, (2 * pair + 1) % U, _mm512_and_si512(_mm512_srli_epi16(w0, 4), low),
                     _mm512_and_si512(_mm512_srli_epi16(w1, 4), low), x + 8 * pair + 4);
        }
    } else {
#pragma GCC unroll 4
        for (int step = 0; step < 4; ++step)
            dot_step(sums, step % U, _mm512_loadu_si512(w + step * 128),
                     _mm512_loadu_si512(w + step * 128 + 64), x + 4 * step);
    }
}

// What the sums of a row over a block begin with, so that they end right: minus the weight's zero point
// times the sum of x's codes, and minus x's zero point times the sum of the weight's codes less theirs.
inline __m512i start_of(const Tile& t, int64_t row, int64_t block, const int32_t* zeros,
                        const int32_t* shifts, int half) {
    __m512i first = _mm512_setzero_si512();
    if (t.starts) {
        first = _mm512_set1_epi32(t.starts[row * t.blocks + block]);
        if (zeros) first = _mm512_mullo_epi32(first, _mm512_loadu_si512(zeros + 16 * half));
    }
    if (!t.sums) return first;
    __m512i shift = _mm512_loadu_si512(t.sums + block * kPanel + 16 * half);
    if (shifts) shift = _mm512_mullo_epi32(shift, _mm512_set1_epi32(shifts[row * t.x_blocks]));
    return _mm512_add_epi32(first, shift);
}

template <int R, int U>
inline void start_block(const Tile& t, int64_t block, const int32_t* zeros, const int32_t* shifts,
                        Sums<R, U>& sums) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) {
            sums.of[0][r][half] = start_of(t, r, block, zeros, shifts, half);
            for (int u = 1; u < U; ++u) sums.of[u][r][half] = _mm512_setzero_si512();
        }
}

template <int R, int U, bool NIBBLES>
inline void dot_block(const Tile& t, const uint8_t*& w, const int8_t*& x, const char*& ahead,
                      int64_t chunks, Sums<R, U>& sums) {
    constexpr int64_t kBytes = kPanel * kCodes / (NIBBLES ? 2 : 1);
    for (int64_t chunk = 0; chunk < chunks; ++chunk, w += kBytes, x += R * kCodes) {
        for (int64_t line = 0; line < t.ahead_lines; ++line, ahead += 64)
            _mm_prefetch(ahead, _MM_HINT_T1);
        dot_chunk<R, U, NIBBLES>(sums, w, x);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half)
            for (int u = 1; u < U; ++u)
                sums.of[0][r][half] = _mm512_add_epi32(sums.of[0][r][half], sums.of[u][r][half]);
}

// y += sum of the block * step of the weight, * step of x where that changes, too.
template <int R, int U, Blocks B>
inline void add_block(const Sums<R, U>& sums, const float* scales, const float* x_scales,
                      int64_t x_blocks, __m512 (&y)[R][2]) {
    const __m512 step[2] = {_mm512_loadu_ps(scales), _mm512_loadu_ps(scales + 16)};
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half) {
            __m512 sum = _mm512_cvtepi32_ps(sums.of[0][r][half]);
            if constexpr (B == Blocks::weight) {
                y[r][half] = _mm512_fmadd_ps(sum, step[half], y[r][half]);
            } else {
                __m512 scale = _mm512_set1_ps(x_scales[r * x_blocks]);
                y[r][half] = _mm512_fmadd_ps(_mm512_mul_ps(sum, step[half]), scale, y[r][half]);
            }
        }
}

// sum * step of the weight * step of x + bias.
template <int R>
inline void store_tile(const Tile& t, const __m512 (&sums)[R][2], bool x_scaled) {
    const __m512 bias[2] = {_mm512_loadu_ps(t.bias), _mm512_loadu_ps(t.bias + 16)};
    const float* x_scales = t.x_scales;
    float* y = t.y;
    int64_t stride = t.y_stride;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r, y += stride) {
        __m512 scale = _mm512_set1_ps(x_scaled ? 1.0f : x_scales[r]);
        for (int half = 0; half < 2; ++half)
            _mm512_storeu_ps(y + 16 * half, _mm512_fmadd_ps(sums[r][half], scale, bias[half]));
    }
}

// One sum over all of k.
template <int R, bool NIBBLES>
void run_whole(const Tile& t) {
    constexpr int U = separate(R, Blocks::none);
    const uint8_t* w = t.weight;
    const int8_t* x = t.x;
    const char* ahead = t.ahead;
    Sums<R, U> sums;
    __m512 y[R][2];
    start_block<R, U>(t, 0, t.zeros, t.shifts, sums);
    dot_block<R, U, NIBBLES>(t, w, x, ahead, t.chunks, sums);
    if (t.integers) {
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
            for (int half = 0; half < 2; ++half)
                _mm512_storeu_si512(t.integers + r * kPanel + 16 * half, sums.of[0][r][half]);
        return;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half)
            y[r][half] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums.of[0][r][half]),
                                       _mm512_loadu_ps(t.scales + 16 * half));
    store_tile(t, y, false);
}

template <int R, Blocks B, bool NIBBLES>
void run_blocks(const Tile& t) {
    constexpr int U = separate(R, B);
    constexpr int64_t kAhead = 8;  // scales: one stream of many, which the processor misses
    const uint8_t* w = t.weight;
    const int8_t* x = t.x;
    const char* ahead = t.ahead;
    const float *scales = t.scales, *x_scales = t.x_scales;
    const int32_t *zeros = t.zeros, *shifts = t.shifts;
    int64_t left = t.chunks, block_chunks = t.block_chunks, blocks = t.blocks;
    int64_t to_weight = t.weight_every, to_x = t.x_every;  // blocks until its scale changes
    Sums<R, U> sums;
    __m512 y[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) y[r][0] = y[r][1] = _mm512_setzero_ps();
    for (int64_t block = 0; block < blocks; ++block, left -= block_chunks) {
        if constexpr (R > 3) {  // which compute longer than they wait
            _mm_prefetch(scales + kAhead * kPanel, _MM_HINT_T0);
            _mm_prefetch(scales + kAhead * kPanel + 16, _MM_HINT_T0);
        }
        start_block<R, U>(t, block, zeros, shifts, sums);
        dot_block<R, U, NIBBLES>(t, w, x, ahead, smaller(left, block_chunks), sums);
        add_block<R, U, B>(sums, scales, x_scales, t.x_blocks, y);
        if (--to_weight == 0) {
            scales += kPanel, to_weight = t.weight_every;
            if (zeros) zeros += kPanel;
        }
        if (B == Blocks::both && --to_x == 0) {
            ++x_scales, to_x = t.x_every;
            if (shifts) ++shifts;
        }
    }
    store_tile(t, y, B == Blocks::both);
}

template <int R, Blocks B, bool NIBBLES>
void run_tile(const Tile& t) {
    if constexpr (B == Blocks::none) {
        run_whole<R, NIBBLES>(t);
    } else {
        run_blocks<R, B, NIBBLES>(t);
    }
}

using RunTile = void (*)(const Tile&);

template <Blocks B, bool NIBBLES>
RunTile tile_of(int64_t rows) {
    static constexpr RunTile small[] = {
        run_tile<1, B, NIBBLES>, run_tile<2, B, NIBBLES>, run_tile<3, B, NIBBLES>,
        run_tile<4, B, NIBBLES>, run_tile<5, B, NIBBLES>, run_tile<6, B, NIBBLES>};
    if (rows <= 6) return small[rows - 1];
    if constexpr (B == Blocks::none) {
        static constexpr RunTile large[] = {
            run_tile<7, B, NIBBLES>,  run_tile<8, B, NIBBLES>,  run_tile<9, B, NIBBLES>,
            run_tile<10, B, NIBBLES>, run_tile<11, B, NIBBLES>, run_tile<12, B, NIBBLES>};
        return large[rows - 7];
    }
    return nullptr;  // tile_rows() is smaller
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
