// SPDX-License-Identifier: BSD-3-Clause
// Register tiles by products of 16-bit integers summed in pairs (vpmaddwd), exact for any codes:
// its 8-bit sibling vpmaddubsw saturates.
#pragma once

#include "tile.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Words: 16-bit codes, four of each output. Pairs: sums, two of each output.
#if defined(__AVX512BW__)
using Words = __m512i;
using Pairs = __m512i;
inline Words four_of_x(const int16_t* x) { return _mm512_set1_epi64(load_64(x)); }
inline Words widen_bytes(const uint8_t* w) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
}
inline Words low_nibbles(Words w) { return _mm512_and_si512(w, _mm512_set1_epi16(15)); }
inline Words high_nibbles(Words w) { return _mm512_srli_epi16(w, 4); }
inline Pairs add_products(Pairs sum, Words w, Words x) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x));
}
constexpr int kRows = 6;
#elif defined(__AVX2__)
using Words = __m256i;
using Pairs = __m256i;
inline Words four_of_x(const int16_t* x) { return _mm256_set1_epi64x(load_64(x)); }
inline Words widen_bytes(const uint8_t* w) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w)));
}
inline Words low_nibbles(Words w) { return _mm256_and_si256(w, _mm256_set1_epi16(15)); }
inline Words high_nibbles(Words w) { return _mm256_srli_epi16(w, 4); }
inline Pairs add_products(Pairs sum, Words w, Words x) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
}
constexpr int kRows = 3;
#elif defined(__x86_64__)
using Words = __m128i;
using Pairs = __m128i;
inline Words four_of_x(const int16_t* x) { return _mm_set1_epi64x(load_64(x)); }
inline Words widen_bytes(const uint8_t* w) {
    return _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(w)),
                             _mm_setzero_si128());
}
inline Words low_nibbles(Words w) { return _mm_and_si128(w, _mm_set1_epi16(15)); }
inline Words high_nibbles(Words w) { return _mm_srli_epi16(w, 4); }
inline Pairs add_products(Pairs sum, Words w, Words x) {
    return _mm_add_epi32(sum, _mm_madd_epi16(w, x));
}
constexpr int kRows = 3;
#else
typedef int16_t Words __attribute__((vector_size(16)));
typedef uint32_t Pairs __attribute__((vector_size(16)));  // unsigned: they may wrap
inline Words four_of_x(const int16_t* x) {
    return Words{x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3]};
}
inline Words widen_bytes(const uint8_t* w) {
    return Words{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]};
}
inline Words low_nibbles(Words w) { return w & 15; }
inline Words high_nibbles(Words w) { return w >> 4; }
inline Pairs add_products(Pairs sum, Words w, Words x) {
    for (int i = 0; i < 4; ++i) sum[i] += w[2 * i] * x[2 * i] + w[2 * i + 1] * x[2 * i + 1];
    return sum;
}
constexpr int kRows = 3;
#endif

constexpr int kOutputs = sizeof(Pairs) / 8;  // of one vector
constexpr int kVectors = 4;                  // of a tile
constexpr int kWidth = kOutputs * kVectors;

constexpr int64_t tile_rows(Blocks) { return kRows; }

template <int R, bool NIBBLES>
inline void dot_chunk(Pairs (&sums)[R][kVectors], const uint8_t* w, const int16_t* x) {
    constexpr int kSteps = NIBBLES ? 2 : 1;  // that a byte holds
    for (int step = 0; step < 4; step += kSteps)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
            Words codes = widen_bytes(w + step / kSteps * 128 + v * kOutputs * 4);
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r) {
                const int16_t* row = x + r * kCodes + step * 4;
                if (NIBBLES) {
                    sums[r][v] = add_products(sums[r][v], low_nibbles(codes), four_of_x(row));
                    sums[r][v] = add_products(sums[r][v], high_nibbles(codes), four_of_x(row + 4));
                } else {
                    sums[r][v] = add_products(sums[r][v], codes, four_of_x(row));
                }
            }
        }
}

// y += sum of a block * steps of the weight * step of x; or the sum itself into `integers`.
template <int R>
inline void add_block(const Tile& t, const Pairs (&sums)[R][kVectors], int64_t block,
                      const float* scales, const int32_t* zeros, const int32_t* of_weight,
                      int32_t* integers, float (&y)[R][kWidth]) {
    int64_t of_x = block / t.x_every;
    for (int r = 0; r < R; ++r) {
        uint32_t pairs[2 * kWidth];  // unsigned: sums may wrap on their way to one that fits
        copy<sizeof(pairs)>(pairs, sums[r]);
        uint32_t start = t.starts[r * t.blocks + block];
        uint32_t shift = t.shifts ? t.shifts[r * t.x_blocks + of_x] : 1;
        float scale = t.x_scales[r * t.x_blocks + of_x];
        auto sum_of = [&](int i) BLOCKSCALE_INLINE_LAMBDA {
            uint32_t first = zeros ? start * static_cast<uint32_t>(zeros[i]) : start;
            if (of_weight) first += shift * static_cast<uint32_t>(of_weight[i]);
            return static_cast<int32_t>(pairs[2 * i] + pairs[2 * i + 1] + first);
        };
        if (integers) {
            for (int i = 0; i < kWidth; ++i) integers[r * kPanel + i] = sum_of(i);
            continue;
        }
        for (int i = 0; i < kWidth; ++i) y[r][i] += static_cast<float>(sum_of(i)) * scales[i] * scale;
    }
}

template <int R, bool NIBBLES>
void run_columns(const Tile& t, int64_t from) {
    constexpr int64_t kBytes = kPanel * kCodes / (NIBBLES ? 2 : 1);
    float y[R][kWidth] = {};
    const uint8_t* w = t.weight + from * 4;
    const int16_t* x = t.x;
    int64_t left = t.chunks;
    for (int64_t block = 0; block < t.blocks; ++block, left -= t.block_chunks) {
        Pairs sums[R][kVectors];
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < kVectors; ++v) sums[r][v] = Pairs{};
        for (int64_t i = smaller(left, t.block_chunks); i > 0; --i, w += kBytes, x += R * kCodes)
            dot_chunk<R, NIBBLES>(sums, w, x);
        int64_t of_weight = block / t.weight_every * kPanel + from;
        add_block<R>(t, sums, block, t.scales + of_weight, t.zeros ? t.zeros + of_weight : nullptr,
                     t.sums ? t.sums + block * kPanel + from : nullptr,
                     t.integers ? t.integers + from : nullptr, y);
    }
    if (t.integers) return;
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < kWidth; ++i) t.y[r * t.y_stride + from + i] = y[r][i] + t.bias[from + i];
}

template <int R, bool NIBBLES>
void run_tile(const Tile& t) {
    for (int64_t from = 0; from < kPanel; from += kWidth) run_columns<R, NIBBLES>(t, from);
}

using RunTile = void (*)(const Tile&);

template <Blocks, bool NIBBLES>
RunTile tile_of(int64_t rows) {
    static constexpr RunTile small[] = {run_tile<1, NIBBLES>, run_tile<2, NIBBLES>,
                                        run_tile<3, NIBBLES>};
    if (rows <= 3) return small[rows - 1];
    if constexpr (kRows > 3) {
        static constexpr RunTile large[] = {run_tile<4, NIBBLES>, run_tile<5, NIBBLES>,
                                            run_tile<6, NIBBLES>};
        return large[rows - 4];
    }
    return nullptr;  // tile_rows() is smaller
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
