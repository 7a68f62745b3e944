// SPDX-License-Identifier: BSD-3-Clause
// An integer linear layer at work: its sizes, and memory for the rows of x that tiles read.
#pragma once

#include "../../tuning.h"
#include "tile.h"

#if defined(BLOCKSCALE_MATRICES)
#include "amx/tile.h"
#elif defined(__AVX512VNNI__)
#include "tile_vnni.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "tile_neon.h"
#else
#include "tile_madd.h"
#endif

namespace blockscale::BLOCKSCALE_ISA {
namespace {

#if !defined(BLOCKSCALE_MATRICES)  // nothing uses these
struct Tiles {
    explicit Tiles(int64_t) {}
};
int64_t matrix_depth(int64_t, int64_t) { return 0; }
struct TileSums {
    int32_t* integers;
};
bool starts_apart(const Tile&) { return false; }
struct Piece {
    int64_t first, count;
    bool begins, ends;
    const uint8_t* codes;
    bool near;
};
void matrix_piece(const Tile&, Blocks, int64_t, int64_t, bool, const Piece&, TileSums&, Tiles&) {}
void unpack_codes(bool, const uint8_t*, int64_t, bool, uint8_t*) {}
#endif

struct Work {
    const IntegerWeight* w;
    IntegerInput in;
    IntegerSums sums;
    Output out;
    Blocks kind;
    int64_t block, block_chunks, blocks;  // what sums are exact over
    int64_t weight_every, x_every, x_blocks;
    int64_t tile_rows;                    // of the largest tile
    int64_t depth;                        // codes along k of a product of matrices; 0: vectors multiply
    bool shifted;                         // x has zero points, or codes that were moved
    float x_step;                         // if one scale is for all of x
    int32_t x_shift;                      // the same
    const int32_t* panel_sums;            // IntegerSums::sums, times x_shift where that is final

    // Rows of x at a time: tiles of equal size, or one row less; of matrices full ones and a last one.
    int64_t first, rows, tiles;
    const float* bias;  // [panels * 32]

    int64_t row_codes() const {
        return depth ? ceil_div(w->chunks() * kCodes, depth) * depth : w->chunks() * kCodes;
    }
    int64_t row_of_tile(int64_t tile) const {
        return depth ? smaller(tile * tile_rows, rows) : tile * rows / tiles;
    }
    // Codes of a row that lie together, and how many rows lie beside one another in a tile of so many.
    int64_t together() const { return depth ? depth : kCodes; }
    int64_t side(int64_t count) const { return depth ? ceil_div(count, kMatrixRows) * kMatrixRows : count; }
    // Whether matrices need the weight's panels a byte to a code; and whether those are signed then, which
    // saves starts: of bytes only where each block has one, because it costs a pass over the panel.
    bool unpacked() const { return depth && (w->nibbles || centred()); }
    bool centred() const {
        if (!depth || w->zeros) return false;
        return w->nibbles || kind != Blocks::none;
    }
    bool row_shifts() const { return shifted && (in.block != 0 || blocks != 1); }
};

// Rows of x as the tiles read them.
struct Quantized {
    Code* codes;
    float* x_scales;  // [row][x_blocks], with room for the rows that fill a tile of matrices
    int32_t* starts;  // [row][blocks]
    int32_t* shifts;  // [row][x_blocks]; null where panel_sums have them

    Quantized at(const Work& p, int64_t row) const {
        return {codes + row * p.row_codes(), x_scales + row * p.x_blocks, starts + row * p.blocks,
                shifts ? shifts + row * p.x_blocks : nullptr};
    }
};

int64_t aligned(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

// Memory for `rows` of them: how much, and where they lie in it.
int64_t code_bytes(const Work& p, int64_t rows) {
    return aligned(p.side(rows) * p.row_codes() * sizeof(Code) + 64);
}

int64_t quantized_bytes(const Work& p, int64_t rows) {
    return code_bytes(p, rows) + 2 * aligned(p.side(rows) * p.x_blocks * 4) + aligned(rows * p.blocks * 4);
}

Quantized quantized_in(const Work& p, int64_t rows, char* at) {
    char* scales = at + code_bytes(p, rows);
    char* shifts = scales + aligned(p.side(rows) * p.x_blocks * 4);
    char* starts = shifts + aligned(rows * p.x_blocks * 4);
    return {reinterpret_cast<Code*>(at), reinterpret_cast<float*>(scales),
            reinterpret_cast<int32_t*>(starts),
            p.row_shifts() ? reinterpret_cast<int32_t*>(shifts) : nullptr};
}

Work plan_of(const IntegerWeight& w, const IntegerInput& in, const IntegerSums& sums,
             const Output& out) {
    Work p{};
    p.w = &w, p.in = in, p.sums = sums, p.out = out;
    int64_t x_block = in.block ? in.block : w.k;
    p.block = sums.block;
    p.block_chunks = ceil_div(p.block, kCodes);
    p.blocks = ceil_div(w.k, p.block);
    p.weight_every = ceil_div(w.block, p.block);
    p.x_every = ceil_div(x_block, p.block);
    p.x_blocks = ceil_div(w.k, x_block);
    p.kind = p.blocks == 1     ? Blocks::none
             : p.x_blocks == 1 ? Blocks::weight
                               : Blocks::both;
    // Few are left to the vectors; more where both sides have blocks, whose sums are scaled one by one.
    int64_t vector_rows = chosen(p.kind == Blocks::both ? Choice::vector_rows_of_blocks
                                                        : Choice::vector_rows);
    if (in.rows > vector_rows) p.depth = matrix_depth(p.block_chunks, p.blocks);
    p.tile_rows = p.depth ? kTileRows : tile_rows(p.kind);
    p.shifted = sums.sums;
    return p;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
