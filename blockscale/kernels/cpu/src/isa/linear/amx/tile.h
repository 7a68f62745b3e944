// SPDX-License-Identifier: BSD-3-Clause
// Tiles of 32 rows by the processor's matrix unit (unit.h), with the bits of tile_vnni.h: sums of integers
// are exact, and what follows them is done in the same order.
#pragma once

#include "unit.h"
#include "blocks.h"
#include "../tile_vnni.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kBatch = 2;  // blocks whose sums are scaled together: little of the first-level cache
constexpr int64_t kFetched = 2;  // products ahead whose codes are fetched: the unit waits for what is not near
constexpr int64_t kSums = kTileRows * kPanel + 16;  // of one block, and a line, so that sets differ

// Codes along k of one product, so that blocks of so many chunks are whole products. `blocks`: how many.
inline int64_t matrix_depth(int64_t block_chunks, int64_t blocks) {
    constexpr int64_t kMost = kMatrixBytes / kCodes;
    if (blocks == 1) return kMatrixBytes;  // what is beyond k is multiplied by zeros
    int64_t chunks = kMost;
    while (block_chunks % chunks) --chunks;
    return chunks * kCodes;
}

// Codes of a panel, `bytes` of nibbles or of bytes that become signed: a byte each [step][32][4], less 8 or
// 128 if centred.
inline void unpack_codes(bool nibbles, const uint8_t* from, int64_t bytes, bool centred, uint8_t* to) {
    if (!nibbles) {
        const __m512i sign = _mm512_set1_epi8(-128);
        for (int64_t i = 0; i < bytes; i += 64)
            _mm512_storeu_si512(to + i, _mm512_xor_si512(_mm512_loadu_si512(from + i), sign));
        return;
    }
    const __m512i low = _mm512_set1_epi8(15), zero = _mm512_set1_epi8(centred ? 8 : 0);
    for (int64_t i = 0; i < bytes; i += 128, from += 128, to += 256)
        for (int half = 0; half < 2; ++half) {
            __m512i codes = _mm512_loadu_si512(from + 64 * half);
            __m512i first = _mm512_and_si512(codes, low);
            __m512i second = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low);
            _mm512_storeu_si512(to + 64 * half, _mm512_sub_epi8(first, zero));
            _mm512_storeu_si512(to + 128 + 64 * half, _mm512_sub_epi8(second, zero));
        }
}

// Where a tile's next codes lie, and those that it fetches.
struct Reading {
    const uint8_t* w;
    const int8_t* x;
    const char* ahead;
    int64_t lines;  // to fetch for each product
    bool w_near;    // the weight is in the first-level cache
};

// Memory of a product ahead.
template <int64_t BYTES>
inline void fetch(const void* at) {
#pragma GCC unroll 32
    for (int64_t i = 0; i < BYTES; i += 64) _mm_prefetch(static_cast<const char*>(at) + i, _MM_HINT_T0);
}

// The sums over `steps` products along k of 32 rows, or 16, and 32 outputs -> to [rows][32], or += if `more`.
template <bool TALL, bool SIGNED>
inline void sum_block(Tiles& tiles, int64_t depth, int64_t steps, Reading& at, int32_t* to, bool more) {
    constexpr int64_t kRow = kPanel * 4, kSide = (TALL ? 2 : 1) * kMatrixRows;  // bytes, and rows
    int32_t* lower = to + kMatrixRows * kPanel;
    if (more) {
        tiles.template load<0>(to, kRow), tiles.template load<1>(to + 16, kRow);
        if constexpr (TALL) tiles.template load<2>(lower, kRow), tiles.template load<3>(lower + 16, kRow);
    } else {
        tiles.template zero<0>(), tiles.template zero<1>();
        if constexpr (TALL) tiles.template zero<2>(), tiles.template zero<3>();
    }
    for (int64_t step = 0; step < steps; ++step) {
        for (int64_t line = 0; line < at.lines; ++line, at.ahead += 64)
            _mm_prefetch(at.ahead, _MM_HINT_T1);
        const uint8_t* w = at.w + kFetched * kPanel * depth;
        const int8_t* x = at.x + kFetched * kSide * depth;
        for (int64_t i = 0; i < depth; i += kCodes) fetch<kSide * kCodes>(x + i * kSide);
        for (int64_t i = 0; i < depth && !at.w_near; i += kCodes) fetch<kPanel * kCodes>(w + i * kPanel);
        tiles.template load<6>(at.w, kRow), tiles.template load<7>(at.w + kRow / 2, kRow);
        tiles.template load<4>(at.x, depth);
        tiles.template dot<0, 4, 6, SIGNED>(), tiles.template dot<1, 4, 7, SIGNED>();
        if constexpr (TALL) {
            tiles.template load<5>(at.x + kMatrixRows * depth, depth);
            tiles.template dot<2, 5, 6, SIGNED>(), tiles.template dot<3, 5, 7, SIGNED>();
        }
        at.w += kPanel * depth;
        at.x += kSide * depth;
    }
    tiles.template store<0>(to, kRow), tiles.template store<1>(to + 16, kRow);
    if constexpr (TALL) tiles.template store<2>(lower, kRow), tiles.template store<3>(lower + 16, kRow);
}

// Whether what sums start with is the same for all of a row, and for all of an output.
inline bool starts_apart(const Tile& t) { return !(t.starts && t.zeros) && !(t.sums && t.shifts); }

// As run_whole of tile_vnni.h. Sums that stay integers where they are may lack what starts_apart tells.
inline void scale_whole(const Tile& t, const int32_t* sums, int64_t rows) {
    bool starts = t.starts || t.sums;
    if (t.integers == sums && (!starts || starts_apart(t))) return;
    for (int half = 0; half < 2; ++half) {
        const __m512 step = _mm512_loadu_ps(t.scales + 16 * half);
        const __m512 bias = _mm512_loadu_ps(t.bias + 16 * half);
        for (int64_t r = 0; r < rows; ++r) {
            __m512i sum = _mm512_loadu_si512(sums + r * kPanel + 16 * half);
            if (starts)
                sum = _mm512_add_epi32(sum, start_of(t, r, 0, t.zeros, t.shifts, half));
            if (t.integers) {
                _mm512_storeu_si512(t.integers + r * kPanel + 16 * half, sum);
                continue;
            }
            __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), step);
            y = _mm512_fmadd_ps(y, _mm512_set1_ps(t.x_scales[r]), bias);
            _mm512_storeu_ps(t.y + r * t.y_stride + 16 * half, y);
        }
    }
}

// As add_block of tile_vnni.h, for `count` blocks from `first` on; all of a batch if FULL.
template <Blocks B, bool STARTS, bool FULL>
inline void add_batch(const Tile& t, const int32_t* sums, int64_t first, int64_t count, int64_t rows,
                      float* y) {
    const int64_t n = FULL ? kBatch : count;
    int64_t of_weight[kBatch], of_x[kBatch];  // which scale is a block's
    for (int64_t b = 0; b < n; ++b) {
        of_weight[b] = (first + b) / t.weight_every * kPanel;
        of_x[b] = B == Blocks::both ? (first + b) / t.x_every : 0;
    }
    for (int half = 0; half < 2; ++half) {
        __m512 steps[kBatch];
        for (int64_t b = 0; b < n; ++b) steps[b] = _mm512_loadu_ps(t.scales + of_weight[b] + 16 * half);
        for (int64_t r = 0; r < rows; ++r) {
            const float* x_scales = t.x_scales + r * t.x_blocks;
            __m512 all = _mm512_loadu_ps(y + r * kPanel + 16 * half);
#pragma GCC unroll 2
            for (int64_t b = 0; b < n; ++b) {
                __m512i sum = _mm512_loadu_si512(sums + b * kSums + r * kPanel + 16 * half);
                if constexpr (STARTS) {
                    const int32_t* zeros = t.zeros ? t.zeros + of_weight[b] : nullptr;
                    const int32_t* shifts = t.shifts ? t.shifts + of_x[b] : nullptr;
                    sum = _mm512_add_epi32(sum, start_of(t, r, first + b, zeros, shifts, half));
                }
                __m512 part = _mm512_cvtepi32_ps(sum);
                if constexpr (B == Blocks::weight) {
                    all = _mm512_fmadd_ps(part, steps[b], all);
                } else {
                    __m512 scale = _mm512_set1_ps(x_scales[of_x[b]]);
                    all = _mm512_fmadd_ps(_mm512_mul_ps(part, steps[b]), scale, all);
                }
            }
            _mm512_storeu_ps(y + r * kPanel + 16 * half, all);
        }
    }
}

template <Blocks B>
void add_blocks(const Tile& t, const int32_t* sums, int64_t first, int64_t count, int64_t rows,
                float* y) {
    bool starts = t.starts || t.sums, full = count == kBatch;
    auto add = starts ? (full ? add_batch<B, true, true> : add_batch<B, true, false>)
                      : (full ? add_batch<B, false, true> : add_batch<B, false, false>);
    add(t, sums, first, count, rows, y);
}

// As store_tile of tile_vnni.h.
inline void store_rows(const Tile& t, const float* y, int64_t rows, bool x_scaled) {
    for (int half = 0; half < 2; ++half) {
        const __m512 bias = _mm512_loadu_ps(t.bias + 16 * half);
        for (int64_t r = 0; r < rows; ++r) {
            __m512 scale = _mm512_set1_ps(x_scaled ? 1.0f : t.x_scales[r]);
            __m512 sum = _mm512_loadu_ps(y + r * kPanel + 16 * half);
            _mm512_storeu_ps(t.y + r * t.y_stride + 16 * half, _mm512_fmadd_ps(sum, scale, bias));
        }
    }
}

// The sums of a block, of 16 rows and 16 outputs.
template <bool SIGNED>
struct BlockProducts {
    static constexpr bool kIntegers = true;
    const uint8_t* w;
    const int8_t* x;
    int64_t w_step, x_step;  // bytes from product to product
    int64_t depth, steps;    // codes along k of a product, products of a block
    const char* ahead;
    int64_t lines;           // to fetch for each product
    bool x_near;             // x is in the first-level cache

    template <int T>
    [[gnu::always_inline]] inline void sum(Tiles& tiles, int64_t block) const {
        constexpr int64_t kProducts = 4;  // ahead
        tiles.template zero<T>();
        for (int64_t step = block * steps; step < (block + 1) * steps; ++step) {
            for (int64_t line = 0; line < lines; ++line)
                _mm_prefetch(ahead + (step * lines + line) * 64, _MM_HINT_T1);
            const int8_t* rows = x + step * x_step;
            for (int64_t i = 0; i < kMatrixRows * depth && !x_near; i += kMatrixRows * kCodes)
                fetch<kMatrixRows * kCodes>(rows + kProducts * x_step + i);
            tiles.template load<4 + T % 2>(rows, depth);
            tiles.template load<6 + T % 2>(w + step * w_step, kPanel * 4);
            tiles.template dot<T, 4 + T % 2, 6 + T % 2, SIGNED>();
        }
    }
};

// A part of k: blocks, or where there is one alone products, from `first` on.
struct Piece {
    int64_t first, count;
    bool begins, ends;      // k
    const uint8_t* codes;   // of the panel, a byte each
    bool near;              // they are in the first-level cache
};

// What a tile has come to after a piece: its sums [32][32], and a line so that sets differ.
union TileSums {
    int32_t integers[kSums];
    float floats[kSums];
};

// Whether blocks are scaled as they come: they have no zero points, and each its own scales.
inline bool scaled_at_once(const Tile& t, Blocks kind) {
    bool each = t.weight_every == 1 && (kind == Blocks::weight || t.x_every == 1);
    return each && !t.starts && !t.sums;
}

// Whole blocks of those.
template <bool TALL, bool SIGNED, bool ROWS>
void scale_pieces(const Tile& t, int64_t depth, const Piece& p, int64_t count, const Reading& at,
                  Tiles& tiles, float* y) {
    constexpr int64_t kSide = (TALL ? 2 : 1) * kMatrixRows;
    int64_t steps = t.block_chunks * kCodes / depth;
    for (int64_t row = 0; row < kSide; row += kMatrixRows)
        for (int64_t half = 0; half < 2; ++half) {
            BlockProducts<SIGNED> products{at.w + half * 64, at.x + row * depth, kPanel * depth,
                                           kSide * depth, depth, steps, at.ahead,
                                           row + half == 0 ? at.lines : 0, half == 1};
            BlockScales scales{t.scales + p.first * kPanel + 16 * half,
                               t.x_scales + row * t.x_blocks + p.first, t.x_blocks};
            ScaledBlocks<BlockProducts<SIGNED>, ROWS> blocks(tiles, products, scales);
            blocks.add(count, y + row * kPanel + 16 * half);
        }
}

// `rows` of a tile, laid out as 16 or 32 [step][rows][depth], times a piece of a panel.
template <bool TALL, bool SIGNED>
void run_piece(const Tile& t, Blocks kind, int64_t rows, int64_t depth, const Piece& p, TileSums& sums,
               Tiles& tiles) {
    constexpr int64_t kSide = (TALL ? 2 : 1) * kMatrixRows;
    int64_t chunks = depth / kCodes, lines = t.ahead_lines * chunks;
    int64_t product = kind == Blocks::none ? p.first : p.first * t.block_chunks / chunks;
    Reading at{p.codes, t.x + product * kSide * depth, t.ahead + product * lines * 64, lines, p.near};
    if (kind == Blocks::none) {
        sum_block<TALL, SIGNED>(tiles, depth, p.count, at, sums.integers, !p.begins);
        if (p.ends) scale_whole(t, sums.integers, rows);
        return;
    }
    float* y = sums.floats;
    if (p.begins) memset(y, 0, kSide * kPanel * 4);
    int64_t done = 0;
    if (scaled_at_once(t, kind)) {
        done = p.count - (p.ends && t.blocks * t.block_chunks != t.chunks);  // the last may be shorter
        auto run = kind == Blocks::weight ? scale_pieces<TALL, SIGNED, false> : scale_pieces<TALL, SIGNED, true>;
        run(t, depth, p, done, at, tiles, y);
        int64_t passed = done * t.block_chunks / chunks;
        at.w += passed * kPanel * depth, at.x += passed * kSide * depth, at.ahead += passed * lines * 64;
    }
    alignas(64) int32_t buffer[kBatch * kSums];
    int64_t left = t.chunks - (p.first + done) * t.block_chunks;
    for (; done < p.count; done += kBatch) {
        int64_t count = smaller(kBatch, p.count - done);
        for (int64_t b = 0; b < count; ++b, left -= t.block_chunks) {
            int64_t steps = ceil_div(smaller(left, t.block_chunks), chunks);
            sum_block<TALL, SIGNED>(tiles, depth, steps, at, buffer + b * kSums, false);
        }
        auto add = kind == Blocks::weight ? add_blocks<Blocks::weight> : add_blocks<Blocks::both>;
        add(t, buffer, p.first + done, count, rows, y);
    }
    if (p.ends) store_rows(t, y, rows, kind == Blocks::both);
}

inline void matrix_piece(const Tile& t, Blocks kind, int64_t rows, int64_t depth, bool centred,
                         const Piece& piece, TileSums& sums, Tiles& tiles) {
    bool tall = rows > kMatrixRows;
    auto run = centred ? (tall ? run_piece<true, true> : run_piece<false, true>)
                       : (tall ? run_piece<true, false> : run_piece<false, false>);
    run(t, kind, rows, depth, piece, sums, tiles);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
