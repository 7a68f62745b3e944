// An integer linear layer at work: its sizes, and memory for the rows of x that tiles read.
#pragma once

#if defined(__AVX512VNNI__)
#include "tile_vnni.h"
#else
#include "tile_madd.h"
#endif

namespace blockscale::BLOCKSCALE_ISA {
namespace {

struct Work {
    const IntegerWeight* w;
    IntegerInput in;
    IntegerSums sums;
    Output out;
    Blocks kind;
    int64_t block, block_chunks, blocks;  // what sums are exact over
    int64_t weight_every, x_every, x_blocks;
    int64_t tile_rows;                    // of the largest tile
    bool shifted;                         // x has zero points, or codes that were moved
    float x_step;                         // if one scale is for all of x
    int32_t x_shift;                      // the same
    const int32_t* panel_sums;            // IntegerSums::sums, times x_shift where that is final

    // Rows of x at a time: tiles of equal size, or one row less.
    int64_t first, rows, tiles;
    const float* bias;  // [panels * 32]

    int64_t row_codes() const { return w->chunks() * kCodes; }
    int64_t row_of_tile(int64_t tile) const { return tile * rows / tiles; }
    bool row_shifts() const { return shifted && (in.block != 0 || blocks != 1); }
};

// Rows of x as the tiles read them.
struct Quantized {
    Code* codes;
    float* x_scales;  // [row][x_blocks]
    int32_t* starts;  // [row][blocks]
    int32_t* shifts;  // [row][x_blocks]; null where panel_sums have them

    Quantized at(const Work& p, int64_t row) const {
        return {codes + row * p.row_codes(), x_scales + row * p.x_blocks, starts + row * p.blocks,
                shifts ? shifts + row * p.x_blocks : nullptr};
    }
};

int64_t aligned(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

// Memory for `rows` of them: how much, and where they lie in it.
int64_t quantized_bytes(const Work& p, int64_t rows) {
    return aligned(rows * p.row_codes() * sizeof(Code) + 64) + 2 * aligned(rows * p.x_blocks * 4) +
           aligned(rows * p.blocks * 4);
}

Quantized quantized_in(const Work& p, int64_t rows, char* at) {
    char* scales = at + aligned(rows * p.row_codes() * sizeof(Code) + 64);
    char* shifts = scales + aligned(rows * p.x_blocks * 4);
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
    p.tile_rows = tile_rows(p.kind);
    p.shifted = sums.sums;
    return p;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
