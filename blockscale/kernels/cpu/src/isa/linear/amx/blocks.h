// SPDX-License-Identifier: BSD-3-Clause
// Sums of blocks by the matrix unit, scaled as they come: 16 rows times 16 outputs, whose float32 sums stay in
// vector registers. The unit gives its sums to memory alone, and a load waits until they are there. So
// block s is multiplied, block s - kStored stored and block s - kScaled scaled side by side.
#pragma once

#include "unit.h"

#if defined(BLOCKSCALE_MATRICES)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kStored = 2, kScaled = 6;  // blocks behind: what a product (52 cycles) and a store take
constexpr int64_t kRing = 8;                 // blocks whose sums are in memory
constexpr int64_t kRingSums = 256 + 16;      // and a line, so that sets differ

// The scales of blocks: of 16 outputs and, if the rows have some, too, of 16 rows.
struct BlockScales {
    const float* outputs;  // [block][kPanel]
    const float* rows;     // [row][row_blocks]
    int64_t row_blocks;
};

// y [16 rows][kPanel] += sums of a block * its scales, for all of `blocks` in order, as add_block of tile_vnni.h
// does. P::sum<T>(tiles, b) leaves the sums of block b in tile T: int32 if P::kIntegers, else float32.
template <class P, bool ROWS>
class ScaledBlocks {
public:
    ScaledBlocks(Tiles& tiles, const P& products, const BlockScales& scales)
        : tiles_(tiles), products_(products), scales_(scales) {}

    void add(int64_t blocks, float* y) {
        __m512 sums[kMatrixRows];
#pragma GCC unroll 16
        for (int64_t r = 0; r < kMatrixRows; ++r) sums[r] = _mm512_loadu_ps(y + r * kPanel);
        for (int64_t s = 0; s < blocks + kScaled; s += 4) {
            turn<0>(s, blocks, sums);
            turn<1>(s + 1, blocks, sums);
            turn<2>(s + 2, blocks, sums);
            turn<3>(s + 3, blocks, sums);
        }
#pragma GCC unroll 16
        for (int64_t r = 0; r < kMatrixRows; ++r) _mm512_storeu_ps(y + r * kPanel, sums[r]);
    }

private:
    template <int T>
    [[gnu::always_inline]] inline void turn(int64_t s, int64_t blocks, __m512 (&sums)[kMatrixRows]) {
        if (s < blocks) products_.template sum<T>(tiles_, s);
        int64_t stored = s - kStored, scaled = s - kScaled;
        if (stored >= 0 && stored < blocks)
            tiles_.template store<(T + 4 - kStored) % 4>(ring_ + stored % kRing * kRingSums, 64);
        if (scaled < 0 || scaled >= blocks) return;
        const int32_t* from = ring_ + scaled % kRing * kRingSums;
        const __m512 scale = _mm512_loadu_ps(scales_.outputs + scaled * kPanel);
#pragma GCC unroll 16
        for (int64_t r = 0; r < kMatrixRows; ++r) {
            __m512i sum = _mm512_load_si512(from + r * 16);
            __m512 part = P::kIntegers ? _mm512_cvtepi32_ps(sum) : _mm512_castsi512_ps(sum);
            if constexpr (ROWS) {
                __m512 of_row = _mm512_set1_ps(scales_.rows[r * scales_.row_blocks + scaled]);
                sums[r] = _mm512_fmadd_ps(_mm512_mul_ps(part, scale), of_row, sums[r]);
            } else {
                sums[r] = _mm512_fmadd_ps(part, scale, sums[r]);
            }
        }
    }

    Tiles& tiles_;
    const P& products_;
    BlockScales scales_;
    alignas(64) int32_t ring_[kRing * kRingSums];
};

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
