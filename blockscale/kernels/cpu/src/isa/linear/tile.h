// SPDX-License-Identifier: BSD-3-Clause
// What a register tile of an integer linear layer works on: a few rows of x times a panel of 32
// outputs. amx/tile.h, tile_vnni.h, tile_neon.h and tile_madd.h compute it.
#pragma once

#include "../../linear.h"
#include "../simd/bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Whose scales change along k: nobody's, the weight's, or perhaps both.
enum class Blocks { none, weight, both };

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
using Code = int8_t;  // of x, as the dot products read it
#else
using Code = int16_t;
#endif

// With a matrix unit, which takes more rows than the vectors do.
#if defined(__AMX_INT8__) || defined(BLOCKSCALE_AMX_EMULATED)
#define BLOCKSCALE_MATRICES 1
constexpr int64_t kTileRows = 32;  // of the largest tile of any kind
#else
constexpr int64_t kTileRows = 12;
#endif
constexpr int64_t kMatrixRows = 16;  // that it multiplies at once

struct Tile {
    const uint8_t* weight;  // the panel's codes
    const float* scales;    // the panel's [weight blocks][32]
    const int32_t* zeros;   // the same, or null
    const int32_t* sums;    // [blocks][32] of the weight's codes less their zero points, or null
    const int32_t* shifts;  // [row][x_blocks] what they are multiplied by; null: they have been
    const Code* x;          // [chunk][row][16]
    const int32_t* starts;  // [row][block] minus the sum of x; without `zeros`, times the zero point;
                            // null: the weight's codes have none
    const float* x_scales;  // [row][x_blocks]
    int64_t x_blocks;
    int64_t chunks, block_chunks, blocks;  // along k
    int64_t weight_every, x_every;         // blocks that share a scale of the weight, of x
    const float* bias;                     // [32]
    float* y;
    int64_t y_stride;
    int32_t* integers;    // [row][32] for sums as they are, of one block; null: y
    const char* ahead;    // what later tiles read first: those by vpdpbusd fetch it into L2,
    int64_t ahead_lines;  // so many lines for each chunk
};

inline int32_t load_32(const void* at) {
    int32_t value;
    copy<4>(&value, at);
    return value;
}

inline int64_t load_64(const void* at) {
    int64_t value;
    copy<8>(&value, at);
    return value;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
