// SPDX-License-Identifier: BSD-3-Clause
// Rows of x and panels of a weight as bf16 numbers for the matrix unit: what float_amx.cpp multiplies.
#pragma once

#include "../../../linear.h"
#include "../../../tuning.h"
#include "../../simd/floats.h"
#include "blocks.h"
#include "../scratch.h"

#if defined(BLOCKSCALE_MATRICES)

namespace blockscale::BLOCKSCALE_ISA {

const Primitives& primitives();

namespace {

constexpr int64_t kAlong = 32;               // numbers along k of a product
constexpr int64_t kDepth = 512;              // of the weight's decoded piece, along k, at most
constexpr int64_t kLeastDepth = 256;         // the same where x has several parts and blocks are scaled late
constexpr int64_t kStride = kDepth + 16;     // rows a power of two apart would share few cache lines
constexpr int64_t kParts = 3;                // of a float32
constexpr int64_t kPart = kPanel * kAlong;   // numbers: a part of 32 outputs in one product
constexpr int64_t kPiece = kDepth * kPanel * kParts;  // the same in all of a piece
constexpr int64_t kRows = 512;               // of x at a time: their sums stay in L2
constexpr int64_t kBytes = 16 << 20;         // of x at a time, in parts

// Of some numbers: magnitudes of the largest and of the smallest but 0, and all bits there are, as integers.
struct Range {
    int32_t high = 0, low = INT32_MAX, all = 0;

    int64_t parts() const { return (all & 0xFFFF) == 0 ? 1 : (all & 0xFF) == 0 ? 2 : kParts; }
    void add(const Range& other) {
        high = static_cast<int32_t>(larger(high, other.high));
        low = static_cast<int32_t>(smaller(low, other.low));
        all |= other.all;
    }
};

// Whether products of numbers of two tensors, and sums of them, stay far from float32's limits. Between
// 2^-94 and 2^120 what the unit takes for 0 is too small to count.
bool tame(const Range& a, const Range& b) {
    constexpr int32_t kHigh = (127 + 60) << 23, kLow = (127 - 80) << 23;
    if (a.high > kHigh || b.high > kHigh || a.low < kLow || b.low < kLow) return false;
    return int64_t{a.low >> 23} + (b.low >> 23) >= 2 * 127 - 94;
}

// n numbers, a multiple of 32.
Range range_of(const float* x, int64_t n) {
    __m512i high = _mm512_setzero_si512(), low = _mm512_set1_epi32(INT32_MAX), bits = high;
    for (int64_t i = 0; i < n; i += 16) {
        __m512i one = _mm512_loadu_si512(x + i);
        __m512i size = _mm512_and_si512(one, _mm512_set1_epi32(INT32_MAX));
        bits = _mm512_or_si512(bits, one);
        high = _mm512_max_epi32(high, size);
        low = _mm512_mask_min_epi32(low, _mm512_test_epi32_mask(size, size), low, size);
    }
    return {_mm512_reduce_max_epi32(high), _mm512_reduce_min_epi32(low), _mm512_reduce_or_epi32(bits)};
}

// The next part of 32 numbers, in order; `rest` is what they are beyond it.
inline __m512i next_part(__m512 (&rest)[2]) {
    const __m512i half = _mm512_set1_epi32(0x8000), mask = _mm512_set1_epi32(-0x10000);
    __m512i top[2];
    for (int i = 0; i < 2; ++i) {
        top[i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest[i]), half), mask);
        rest[i] = _mm512_sub_ps(rest[i], _mm512_castsi512_ps(top[i]));
    }
    alignas(64) static constexpr uint16_t kUpper[32] = {
        1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16(top[0], _mm512_load_si512(kUpper), top[1]);
}

// Rows of 16 words become columns.
inline void transpose(__m512i (&v)[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            v[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            v[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < 4; ++i) {  // v[4 g + i]: column i of each lane, of rows 4 g to 4 g + 3
        __m512i low = _mm512_shuffle_i32x4(v[i], v[4 + i], 0x88);
        __m512i high = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0x88);
        __m512i low_odd = _mm512_shuffle_i32x4(v[i], v[4 + i], 0xDD);
        __m512i high_odd = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0xDD);
        t[i] = _mm512_shuffle_i32x4(low, high, 0x88);
        t[8 + i] = _mm512_shuffle_i32x4(low, high, 0xDD);
        t[4 + i] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
    }
    for (int i = 0; i < 16; ++i) v[i] = t[i];
}

// What the weight's values are multiplied by after their sums, so that what is left are one part: nothing;
// the outer of two scales; the step of a row; that of each block.
enum class Late { none, outer, rows, blocks };

Late late_of(const FloatWeight& w) {
    const Spec& spec = *w.spec;
    int64_t block = w.grid.block_columns;
    if (w.offsets || w.grid.block_rows != 1) return Late::none;
    switch (spec.scale) {
        case ScaleKind::two_level:
            return w.scale_codes && w.outer >= 0x1p-60f && w.outer <= 0x1p60f ? Late::outer : Late::none;
        case ScaleKind::e8m0:
        case ScaleKind::pow2: return Late::none;
        case ScaleKind::fp32:
        case ScaleKind::fp16:
        case ScaleKind::bf16: break;
    }
    if (spec.element.family != Family::integer || spec.element.bits > 8) return Late::none;
    if (block >= w.grid.columns) return Late::rows;
    return block % kAlong == 0 && kLeastDepth % block == 0 ? Late::blocks : Late::none;
}

struct Work {
    const FloatWeight* w;
    Late late;
    int64_t depth;        // of pieces along k: that of the weight and 16 rows of x stay in L1
    const void* x;
    Dtype dtype;
    Output out;
    int64_t parts;        // of x's numbers
    int64_t panels;       // of the weight, that are decoded together
    int64_t first, rows;  // of x at a time
    uint16_t* x_parts;    // [tile][step][part][row][32]

    int64_t k() const { return w->grid.columns; }
    int64_t n() const { return w->grid.rows; }
    int64_t steps() const { return ceil_div(k(), kAlong); }
    int64_t scales() const { return w->grid.scale_columns(); }
    int64_t row_parts() const { return steps() * parts * kAlong; }
    int64_t tiles() const { return ceil_div(rows, kTileRows); }
    int64_t side(int64_t tile) const {
        return rows - tile * kTileRows > kMatrixRows ? kTileRows : kMatrixRows;
    }
};

// A row of x in parts.
Range split_row(const Work& p, int64_t row) {
    int64_t tile = row / kTileRows, side = p.side(tile);
    uint16_t* to = p.x_parts + tile * kTileRows * p.row_parts() + row % kTileRows * kAlong;
    alignas(64) float buffer[kDepth];
    Range range;
    for (int64_t column = 0; column < p.k(); column += kDepth) {
        int64_t n = smaller(kDepth, p.k() - column), whole = ceil_div(n, kAlong) * kAlong;
        const float* x = widen(p.x, p.dtype, (p.first + row) * p.k() + column, n, buffer);
        if (x != buffer && n < whole) memcpy(buffer, x, n * 4), x = buffer;
        for (int64_t i = n; i < whole; ++i) buffer[i] = 0.0f;
        range.add(range_of(x, whole));
        for (int64_t i = 0; i < whole; i += kAlong) {
            __m512 rest[2] = {_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16)};
            for (int64_t part = 0; part < p.parts; ++part, to += side * kAlong)
                _mm512_storeu_si512(to, next_part(rest));
        }
    }
    return range;
}

// What a thread works with: a panel as numbers [32][kStride], its piece in parts [step][part][16 pairs]
// [32 outputs][2], sums [panel][row][32], and of a panel steps [32][scales] in the place of the weight's and
// those that come late [block][32].
struct Buffers {
    float* decoded;
    uint16_t* weight;
    float *sums, *steps, *late;

    explicit Buffers(const Work& p) {
        int64_t numbers = kPanel * kStride * 4, rows = p.tiles() * kTileRows;
        int64_t all = p.panels * rows * kPanel * 4, scales = p.late == Late::none ? 0 : kPanel * p.scales() * 4;
        char* at = linear_scratch<Use::own>().of(numbers + kPiece * 2 + all + scales + kDepth * kPanel * 4 + 64);
        decoded = reinterpret_cast<float*>(at);
        weight = reinterpret_cast<uint16_t*>(at + numbers);
        sums = reinterpret_cast<float*>(at + numbers + kPiece * 2);
        late = reinterpret_cast<float*>(at + numbers + kPiece * 2 + all);
        steps = late + kDepth * kPanel;  // behind them 64 bytes may be read
    }
};

bool moderate(float step) {
    float size = from_bits(to_bits(step) & INT32_MAX);
    return size == 0.0f || (size >= 0x1p-60f && size <= 0x1p60f);
}

// The steps of a panel's piece that come late. False if sums times them could leave float32's range.
bool find_late(const Work& p, int64_t panel, int64_t column, const Buffers& b) {
    if (p.late != Late::rows && p.late != Late::blocks) return true;
    int64_t from = panel * kPanel, count = smaller(kPanel, p.n() - from), block = p.w->grid.block_columns;
    int64_t blocks = p.late == Late::rows ? 1 : ceil_div(smaller(p.depth, p.k() - column), block);
    int64_t first = p.late == Late::rows ? 0 : column / block;
    bool all = true;
    for (int64_t i = 0; i < kPanel; ++i)
        for (int64_t at = 0; at < blocks; ++at) {
            float step = i < count ? p.w->steps[(from + i) * p.scales() + first + at] : 0.0f;
            b.late[at * kPanel + i] = step;
            all &= moderate(step);
        }
    return all;
}

// A piece of a panel as numbers, but for what comes late.
void decode_panel(const Work& p, int64_t panel, int64_t column, int64_t depth, const Buffers& b) {
    const FloatWeight& w = *p.w;
    int64_t from = panel * kPanel, count = smaller(kPanel, p.n() - from), at = from * p.scales();
    if (p.late == Late::none)
        return primitives().decode(*w.spec, w.grid, w.codes, w.steps, w.zero_points, w.offsets, from, count,
                                   column, depth, b.decoded, kStride);
    if (p.late == Late::outer) {
        constexpr float kOne[32] = {1.0f};
        Grid all{.planes = 1, .rows = p.n(), .columns = p.scales(),
                 .block_planes = 1, .block_rows = p.n(), .block_columns = p.scales()};
        primitives().decode(*w.spec->inner, all, w.scale_codes, kOne, nullptr, nullptr, from, count, 0,
                            p.scales(), b.steps, p.scales());
    } else {
        for (int64_t i = 0; i < kPanel * p.scales(); ++i) b.steps[i] = 1.0f;
    }
    primitives().decode(*w.spec, w.grid, w.codes + from * w.spec->row_bytes(p.k()), b.steps,
                        w.zero_points ? w.zero_points + at : nullptr, nullptr, 0, count, column, depth,
                        b.decoded, kStride);
}

// The codes of rows of a panel's next piece, of those that the processor does not fetch by itself: few in a row.
void fetch_codes(const Work& p, int64_t panel, int64_t column, int64_t first, int64_t last) {
    int64_t row_bytes = p.w->spec->row_bytes(p.k()), bits = p.w->spec->element.bits;
    int64_t from = panel * kPanel, bytes = smaller(p.depth, p.k() - column) * bits / 8;
    for (int64_t row = from + first; row < smaller(from + last, p.n()); ++row) {
        const uint8_t* at = p.w->codes + row * row_bytes + column * bits / 8;
        for (int64_t i = 0; i < bytes; i += 64)
            _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T1);
    }
}

// A piece of a panel, decoded and in parts. `steps`: of its products.
Range split_panel(const Work& p, int64_t panel, int64_t column, int64_t steps, const Buffers& b) {
    float* decoded = b.decoded;
    uint16_t* to = b.weight;
    int64_t count = smaller(kPanel, p.n() - panel * kPanel), depth = smaller(p.depth, p.k() - column);
    if (count < kPanel || depth < steps * kAlong) memset(decoded, 0, kPanel * kStride * 4);
    decode_panel(p, panel, column, depth, b);
    Range range;
    for (int64_t i = 0; i < kPanel; ++i) range.add(range_of(decoded + i * kStride, steps * kAlong));
    int64_t parts = range.parts();
    for (int64_t step = 0; step < steps; ++step, to += parts * kPart)
        for (int64_t half = 0; half < 2; ++half) {
            __m512i pairs[kParts][16];
            for (int64_t i = 0; i < 16; ++i) {
                const float* row = decoded + (half * 16 + i) * kStride + step * kAlong;
                __m512 rest[2] = {_mm512_loadu_ps(row), _mm512_loadu_ps(row + 16)};
                for (int64_t part = 0; part < parts; ++part) pairs[part][i] = next_part(rest);
            }
            for (int64_t part = 0; part < parts; ++part) {
                transpose(pairs[part]);
                uint16_t* at = to + part * kPart + half * kAlong;
                for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(at + i * 2 * kPanel, pairs[part][i]);
            }
        }
    return range;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
