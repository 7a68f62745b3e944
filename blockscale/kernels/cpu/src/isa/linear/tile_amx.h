// Tiles of 32 rows by the processor's matrix unit (amx.h), with the bits of tile_vnni.h: sums of integers
// are exact, and what follows them is done in the same order.
#pragma once

#include "amx.h"
#include "tile_vnni.h"

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

// A panel of nibbles, or of codes that become signed: a byte each [step][32][4], less 8 or 128 if centred.
inline void unpack_panel(const IntegerWeight& w, const uint8_t* from, bool centred, uint8_t* to) {
    int64_t vectors = w.chunks() * w.chunk_bytes() / 64;
    if (!w.nibbles) {
        const __m512i sign = _mm512_set1_epi8(-128);
        for (int64_t i = 0; i < vectors; ++i, from += 64, to += 64)
            _mm512_storeu_si512(to, _mm512_xor_si512(_mm512_loadu_si512(from), sign));
        return;
    }
    const __m512i low = _mm512_set1_epi8(15), zero = _mm512_set1_epi8(centred ? 8 : 0);
    for (int64_t i = 0; i < vectors; i += 2, from += 128, to += 256)
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
};

// Memory of a product ahead.
template <int64_t BYTES>
inline void fetch(const void* at) {
#pragma GCC unroll 32
    for (int64_t i = 0; i < BYTES; i += 64) _mm_prefetch(static_cast<const char*>(at) + i, _MM_HINT_T0);
}

// The sums over `steps` products along k of 32 rows, or 16, and 32 outputs -> to [rows][32].
template <bool TALL, bool SIGNED>
inline void sum_block(Tiles& tiles, int64_t depth, int64_t steps, Reading& at, int32_t* to) {
    constexpr int64_t kRow = kPanel * 4, kSide = (TALL ? 2 : 1) * kMatrixRows;  // bytes, and rows
    tiles.template zero<0>(), tiles.template zero<1>();
    if constexpr (TALL) tiles.template zero<2>(), tiles.template zero<3>();
    for (int64_t step = 0; step < steps; ++step) {
        for (int64_t line = 0; line < at.lines; ++line, at.ahead += 64)
            _mm_prefetch(at.ahead, _MM_HINT_T1);
        const uint8_t* w = at.w + kFetched * kPanel * depth;
        const int8_t* x = at.x + kFetched * kSide * depth;
        for (int64_t i = 0; i < depth; i += kCodes)
            fetch<kPanel * kCodes>(w + i * kPanel), fetch<kSide * kCodes>(x + i * kSide);
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
    if constexpr (TALL) {
        to += kMatrixRows * kPanel;
        tiles.template store<2>(to, kRow), tiles.template store<3>(to + 16, kRow);
    }
}

// As run_whole of tile_vnni.h.
inline void scale_whole(const Tile& t, const int32_t* sums, int64_t rows) {
    bool starts = t.starts || t.sums;
    for (int half = 0; half < 2; ++half) {
        const __m512 step = _mm512_loadu_ps(t.scales + 16 * half);
        const __m512 bias = _mm512_loadu_ps(t.bias + 16 * half);
        for (int64_t r = 0; r < rows; ++r) {
            __m512i sum = _mm512_loadu_si512(sums + r * kPanel + 16 * half);
            if (starts)
                sum = _mm512_add_epi32(sum, start_of(t, r, 0, t.zeros, t.shifts, half));
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

// `rows` of a tile, laid out as 16 or 32 [step][rows][depth], times a panel of a byte to a code.
template <bool TALL, bool SIGNED>
void run_matrix(const Tile& t, Blocks kind, int64_t rows, int64_t depth, Tiles& tiles) {
    int64_t chunks = depth / kCodes;
    Reading at{t.weight, t.x, t.ahead, t.ahead_lines * chunks};
    alignas(64) int32_t sums[kBatch * kSums];
    if (kind == Blocks::none) {
        sum_block<TALL, SIGNED>(tiles, depth, ceil_div(t.chunks, chunks), at, sums);
        return scale_whole(t, sums, rows);
    }
    alignas(64) float y[kTileRows * kPanel];
    memset(y, 0, rows * kPanel * 4);
    int64_t left = t.chunks;
    for (int64_t first = 0; first < t.blocks; first += kBatch) {
        int64_t count = smaller(kBatch, t.blocks - first);
        for (int64_t b = 0; b < count; ++b, left -= t.block_chunks) {
            int64_t steps = ceil_div(smaller(left, t.block_chunks), chunks);
            sum_block<TALL, SIGNED>(tiles, depth, steps, at, sums + b * kSums);
        }
        auto add = kind == Blocks::weight ? add_blocks<Blocks::weight> : add_blocks<Blocks::both>;
        add(t, sums, first, count, rows, y);
    }
    store_rows(t, y, rows, kind == Blocks::both);
}

inline void matrix_tile(const Tile& t, Blocks kind, int64_t rows, int64_t depth, bool centred,
                        Tiles& tiles) {
    bool tall = rows > kMatrixRows;
    auto run = centred ? (tall ? run_matrix<true, true> : run_matrix<false, true>)
                       : (tall ? run_matrix<true, false> : run_matrix<false, false>);
    run(t, kind, rows, depth, tiles);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
