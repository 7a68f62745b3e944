// SPDX-License-Identifier: BSD-3-Clause
// Register tiles by Arm's dot products of bytes: of four codes (sdot; usdot, where i8mm is), or of
// eight codes of two outputs and two rows at once (usmmla). sdot wants both signed, so that unsigned
// 8-bit codes of the weight are 128 less for it, and so are their zero points.
#pragma once

#include "tile.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int kRows = 6;             // of a tile: with 4 vectors 24 sums of 32 registers
constexpr int kVectors = 4;
constexpr int kWidth = 4 * kVectors;  // outputs of a tile

#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kMatrix = true;
#else
constexpr bool kMatrix = false;
#endif

template <bool NIBBLES>
constexpr bool moved = !NIBBLES && !kMatrix;  // weights 128 less

constexpr int64_t tile_rows(Blocks) { return kRows; }

template <int R>
struct Sums {
    int32x4_t of[R][kVectors];
};

// Four codes of each of four outputs at `step` of a chunk (IntegerWeight).
template <bool NIBBLES, int STEP>
inline uint8x16_t codes_at(const uint8_t* w) {
    if constexpr (NIBBLES) {
        uint8x16_t both = vld1q_u8(w + STEP / 2 * 128);
        return STEP % 2 ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
    } else {
        uint8x16_t codes = vld1q_u8(w + STEP * 128);
        return moved<NIBBLES> ? veorq_u8(codes, vdupq_n_u8(128)) : codes;
    }
}

template <int LANE>
inline int32x4_t dot(int32x4_t sum, uint8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vusdotq_laneq_s32(sum, w, x, LANE);
#else
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w), x, LANE);
#endif
}

template <int R, bool NIBBLES, int STEP>
inline void dot_step(Sums<R>& sums, const uint8_t* w, const int8x16_t (&x)[R]) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
        uint8x16_t codes = codes_at<NIBBLES, STEP>(w + 16 * v);
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) sums.of[r][v] = dot<STEP>(sums.of[r][v], codes, x[r]);
    }
}

template <int R, bool NIBBLES>
inline void dot_chunks(const uint8_t*& w, const int8_t*& x, int64_t chunks, Sums<R>& sums) {
    constexpr int64_t kBytes = kPanel * kCodes / (NIBBLES ? 2 : 1);
    for (int64_t chunk = 0; chunk < chunks; ++chunk, w += kBytes, x += R * kCodes) {
        int8x16_t rows[R];
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) rows[r] = vld1q_s8(x + r * kCodes);
        dot_step<R, NIBBLES, 0>(sums, w, rows);
        dot_step<R, NIBBLES, 1>(sums, w, rows);
        dot_step<R, NIBBLES, 2>(sums, w, rows);
        dot_step<R, NIBBLES, 3>(sums, w, rows);
    }
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Eight codes of each of two outputs lie in two steps; eight of two rows, in halves of a chunk. Of an
// odd number of rows the last one is multiplied twice.
template <int P, bool NIBBLES, int HALF>
inline void multiply_half(int32x4_t (&sums)[P][2 * kVectors], const uint8_t* w, const int8_t* x,
                          int last) {
    int8x16_t pairs[P];
#pragma GCC unroll 3
    for (int p = 0; p < P; ++p) {
        int second = 2 * p < last ? 2 * p + 1 : last;
        pairs[p] = vcombine_s8(vld1_s8(x + 2 * p * kCodes + 8 * HALF),
                               vld1_s8(x + second * kCodes + 8 * HALF));
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
        uint32x4_t a = vreinterpretq_u32_u8(codes_at<NIBBLES, 2 * HALF>(w + 16 * v));
        uint32x4_t b = vreinterpretq_u32_u8(codes_at<NIBBLES, 2 * HALF + 1>(w + 16 * v));
        uint8x16_t low = vreinterpretq_u8_u32(vzip1q_u32(a, b));
        uint8x16_t high = vreinterpretq_u8_u32(vzip2q_u32(a, b));
#pragma GCC unroll 3
        for (int p = 0; p < P; ++p) {
            sums[p][2 * v] = vusmmlaq_s32(sums[p][2 * v], low, pairs[p]);
            sums[p][2 * v + 1] = vusmmlaq_s32(sums[p][2 * v + 1], high, pairs[p]);
        }
    }
}

template <int R, bool NIBBLES>
inline void multiply_chunks(const uint8_t*& w, const int8_t*& x, int64_t chunks, Sums<R>& sums) {
    constexpr int64_t kBytes = kPanel * kCodes / (NIBBLES ? 2 : 1);
    constexpr int P = (R + 1) / 2;
    int32x4_t pairs[P][2 * kVectors] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk, w += kBytes, x += R * kCodes) {
        multiply_half<P, NIBBLES, 0>(pairs, w, x, R - 1);
        multiply_half<P, NIBBLES, 1>(pairs, w, x, R - 1);
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) {
            int32x4_t a = pairs[r / 2][2 * v], b = pairs[r / 2][2 * v + 1];
            sums.of[r][v] = r % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
        }
}
#endif

// What the sums of a block lack (start_block in tile_vnni.h), times the steps of both; unsigned: sums
// may wrap on their way to one that fits. Not fused, so that all of Arm gives the same bits.
template <int R, bool NIBBLES>
inline void add_block(const Tile& t, const Sums<R>& sums, int64_t block, int64_t from,
                      float32x4_t (&y)[R][kVectors]) {
    int64_t of_scales = block / t.weight_every * kPanel + from, of_x = block / t.x_every;
    for (int r = 0; r < R; ++r) {
        uint32_t start = t.starts[r * t.blocks + block];
        uint32_t shift = t.shifts ? t.shifts[r * t.x_blocks + of_x] : 1;
        float32x4_t scale = vdupq_n_f32(t.x_scales[r * t.x_blocks + of_x]);
        for (int v = 0; v < kVectors; ++v) {
            uint32x4_t sum = vreinterpretq_u32_s32(sums.of[r][v]);
            if (t.zeros) {
                const int32_t* at = t.zeros + of_scales + 4 * v;
                uint32x4_t zeros = vreinterpretq_u32_s32(vld1q_s32(at));
                if (moved<NIBBLES>) zeros = vsubq_u32(zeros, vdupq_n_u32(128));
                sum = vmlaq_n_u32(sum, zeros, start);
            } else if (!moved<NIBBLES>) {
                sum = vaddq_u32(sum, vdupq_n_u32(start));
            }
            if (t.sums) {
                const int32_t* at = t.sums + block * kPanel + from + 4 * v;
                sum = vmlaq_n_u32(sum, vreinterpretq_u32_s32(vld1q_s32(at)), shift);
            }
            if (t.integers) {
                vst1q_s32(t.integers + r * kPanel + from + 4 * v, vreinterpretq_s32_u32(sum));
                continue;
            }
            float32x4_t value = vcvtq_f32_s32(vreinterpretq_s32_u32(sum));
            value = vmulq_f32(vmulq_f32(value, vld1q_f32(t.scales + of_scales + 4 * v)), scale);
            y[r][v] = vaddq_f32(y[r][v], value);
        }
    }
}

template <int R, bool NIBBLES>
void run_columns(const Tile& t, int64_t from) {
    float32x4_t y[R][kVectors] = {};
    const uint8_t* w = t.weight + from * 4;
    const int8_t* x = t.x;
    int64_t left = t.chunks;
    for (int64_t block = 0; block < t.blocks; ++block, left -= t.block_chunks) {
        Sums<R> sums = {};
        int64_t chunks = smaller(left, t.block_chunks);
#if defined(__ARM_FEATURE_MATMUL_INT8)
        if constexpr (R > 1) {
            multiply_chunks<R, NIBBLES>(w, x, chunks, sums);
        } else {
            dot_chunks<R, NIBBLES>(w, x, chunks, sums);
        }
#else
        dot_chunks<R, NIBBLES>(w, x, chunks, sums);
#endif
        add_block<R, NIBBLES>(t, sums, block, from, y);
    }
    if (t.integers) return;
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v)
            vst1q_f32(t.y + r * t.y_stride + from + 4 * v,
                      vaddq_f32(y[r][v], vld1q_f32(t.bias + from + 4 * v)));
}

template <int R, bool NIBBLES>
void run_tile(const Tile& t) {
    for (int64_t from = 0; from < kPanel; from += kWidth) run_columns<R, NIBBLES>(t, from);
}

using RunTile = void (*)(const Tile&);

template <Blocks, bool NIBBLES>
RunTile tile_of(int64_t rows) {
    static constexpr RunTile all[] = {run_tile<1, NIBBLES>, run_tile<2, NIBBLES>,
                                      run_tile<3, NIBBLES>, run_tile<4, NIBBLES>,
                                      run_tile<5, NIBBLES>, run_tile<6, NIBBLES>};
    return all[rows - 1];
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
