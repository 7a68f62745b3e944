// SPDX-License-Identifier: BSD-3-Clause
// How a tensor is cut into units of work, and how their statistics become scales. The words for the
// parts of a tensor (unit, strip, piece, band) are those of src/README.md.
#pragma once

#include "../simd/array.h"
#include "../simd/environment.h"
#include "chunk.h"
#include "interleaved.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Rows whose blocks divide them, one after another, are one long row: short rows cost no calls.
inline Grid flattened(const Grid& g) {
    bool own_row = g.block_rows == 1 && g.block_planes == 1 && !g.outer && !g.interleaved;
    if (g.planes * g.rows == 1 || !own_row || g.columns % g.block_columns) return g;
    return {1, 1, g.size(), 1, 1, g.block_columns};
}

struct Plan {
    Grid grid;
    int64_t strip;   // columns of a unit
    int64_t piece;   // those of a strip that pass through all stages while they are in L1
    int64_t strips;  // units side by side in a row
    int64_t rows;    // of a unit: those of a block if it is cached, else a part of them
    int64_t parts;   // units below one another in the rows of a block
    bool cached;     // a unit holds all of each of its blocks
    bool threads_pay;

    // Rows of blocks.
    int64_t bands() const { return ceil_div(grid.rows, grid.block_rows); }
    // With blocks over all planes, a cached unit spans them, and others lie in one.
    int64_t planes() const { return cached ? grid.scale_planes() : grid.planes; }
    int64_t units() const { return planes() * bands() * parts * strips; }

    // Elements from what is read to what is asked for. A unit of many rows is read twice, and while that
    // happens the next one is fetched.
    int64_t ahead() const {
        if (piece < strip) return 4 * piece;
        return strips > 1 ? strip : strip * grid.block_rows;
    }

    // Call body(rectangle) for each plane of a unit.
    template <class Body>
    void for_unit_planes(const Rectangle& unit, Body body) const {
        if (!cached) return body(unit);
        for_planes(grid, unit.plane, [&](int64_t plane) {
            Rectangle r = unit;
            r.plane = plane;
            body(r);
        });
    }

    Rectangle unit(int64_t i) const {
        int64_t column = i % strips * strip, rest = i / strips;
        int64_t part = rest % parts, band = rest / parts % bands(), plane = rest / parts / bands();
        int64_t row = band * grid.block_rows + part * rows;
        int64_t end = smaller(smaller((band + 1) * grid.block_rows, grid.rows), row + rows);
        return {cached ? grid.first_plane(plane) : plane, row, larger(end - row, 0), column,
                smaller(strip, grid.columns - column)};
    }

    // The index of the first block of a unit in the stored scale.
    int64_t block(const Rectangle& r) const {
        int64_t row = grid.scale_plane(r.plane) * grid.scale_rows() + r.row / grid.block_rows;
        return row * grid.scale_columns() + r.column / grid.block_columns * grid.period_blocks;
    }

    // How many blocks a piece touches at most.
    int64_t most_blocks() const {
        return grid.interleaved ? grid.interleaved->blocks
                                : ceil_div(piece, grid.block_columns) + 1;
    }

    // How many blocks it touches.
    int64_t blocks(const Rectangle& r) const {
        if (grid.interleaved) return ceil_div(r.columns, grid.block_columns) * grid.period_blocks;
        return (r.column + r.columns - 1) / grid.block_columns - r.column / grid.block_columns + 1;
    }
};

// Columns per unit: at most `limit`, cut between bytes and between blocks where those are smaller.
inline int64_t strip_of(const Grid& g, int64_t limit) {
    if (g.columns <= limit) return g.columns;
    int64_t step = g.block_columns > limit ? 8 : 8 / gcd(8, g.block_columns) * g.block_columns;
    return larger(limit / step, 1) * step;
}

// waits: a unit takes the time that its memory takes.
inline Plan make_plan(const Grid& full, bool choosing, bool waits = false) {
    Grid g = flattened(full);
    Plan p{.grid = g, .strip = 0, .piece = 0, .strips = 0, .rows = 1, .parts = 1, .cached = false,
           .threads_pay = full.size() >= chosen(Choice::threaded_elements)};
    int64_t unit = chosen(Choice::unit_elements);
    int64_t block_rows = smaller(g.block_rows, g.rows);
    int64_t height = block_rows * g.block_planes;  // of a cached unit
    int64_t narrow = smaller(g.columns, larger(g.block_columns, 64));
    if (g.interleaved) narrow = g.interleaved->strip;
    // To spread the scales of interleaved blocks over their columns pays for many rows.
    p.cached = (choosing || g.interleaved) && height * narrow <= 8 * unit;
    // Short pieces of many rows are slow to fetch: rather units that fill half of L2.
    int64_t wide = height > 1 ? smaller(2048, 8 * unit / height) : 0;
    p.strip = g.interleaved
                  ? narrow
                  : strip_of(g, p.cached ? larger(larger(unit / height, wide), narrow) : unit);
    // Blocks that are few to a piece are no reason for pieces, unless memory is waited for.
    int64_t piece = larger(waits ? kPiece : 2 * kPiece, narrow);
    bool whole = height > 1 || g.interleaved || (!waits && narrow >= 128);
    p.piece = whole ? p.strip : smaller(p.strip, strip_of(g, piece));
    p.strips = ceil_div(g.columns, p.strip);
    // Statistics of parts of a block are merged one part at a time, and each unit loads its scales:
    // few and large ones.
    int64_t part = larger(unit, g.size() / 64);
    p.rows = p.cached ? g.block_rows : smaller(g.block_rows, larger(part / p.strip, 1));
    p.parts = p.cached ? 1 : ceil_div(g.block_rows, p.rows);
    return p;
}

// The index of the outer scale of each inner one.
struct OuterIndex {
    explicit OuterIndex(const Grid& inner) : grid(inner), single(inner.blocks() == 1) {}

    int64_t operator()(int64_t i) const {
        if (single) return 0;
        int64_t column = i % grid.columns, row = i / grid.columns % grid.rows;
        int64_t plane = grid.scale_plane(i / grid.columns / grid.rows);
        return (plane * grid.scale_rows() + row / grid.block_rows) * grid.scale_columns() +
               grid.scale_column(column);
    }

    const Grid& grid;
    bool single;
};

// Call body(unit) for each, on as many threads as pay.
template <class Body>
inline void for_units(int64_t units, int threads, bool pays, Body body) {
    if (threads <= 1 || units == 1 || !pays) {
        FullPrecision guard;
        for (int64_t i = 0; i < units; ++i) body(i);
        fence();
        return;
    }
    int64_t grain = larger(1, units / (threads * 32));
    Lack lack;
#pragma omp parallel num_threads(startable(threads))
    {
        FullPrecision guard;
#pragma omp for schedule(dynamic, grain)
        for (int64_t i = 0; i < units; ++i) lack.carry([&] { body(i); });
        fence();
    }
    lack.raise();
}

// Room for the statistics of n blocks.
struct StatisticsBuffer {
    StatisticsBuffer(const Spec& spec, int64_t n)
        : ranged(takes_values(spec.statistic)), meant(summing_passes(spec.statistic) > 0),
          bare(spec.offset != Stored::none),
          high(n), low(ranged ? n : 1), odd(n), sum(meant ? n : 1),
          count(meant ? n : 1) {}

    Statistics view() {
        return {high, ranged ? low.get() : nullptr, odd, meant ? sum.get() : nullptr,
                meant ? count.get() : nullptr, bare};
    }

    bool ranged, meant, bare;
    Array<int32_t> high, low;
    Array<uint8_t> odd;
    Array<int64_t> sum, count;
};

inline void merge(const Statistics& from, int64_t n, const Statistics& to) {
    for (int64_t i = 0; i < n; ++i) {
        if (from.high[i] > to.high[i]) to.high[i] = from.high[i];
        if (to.low && from.low[i] < to.low[i]) to.low[i] = from.low[i];
        to.odd[i] |= from.odd[i];
    }
}

// t_i = floor(|x_i| * 2^(30 - e)) for a block whose largest magnitude has these bits (section 3.2).
inline Shift shift_of(int32_t magnitude, int32_t* exponent) {
    int32_t fraction;
    split(magnitude ? from_bits(magnitude) : 1.0f, exponent, &fraction);
    if (*exponent < -126) *exponent = -126;
    int32_t shift = 30 - *exponent;  // exact in one product or two
    int32_t first = shift > 127 ? 127 : shift;
    return {pow2(first), pow2(shift - first)};
}

inline float mean_of(int64_t sum, int64_t count, int32_t exponent) {
    float n = static_cast<float>(count > 1 ? count : 1);
    return static_cast<float>(sum) / n * 0x1p-30f * pow2(exponent);
}

// Statistics -> numerators, in place: float32 in `high` (and the other end of the range in `low`).
inline void to_numerators(const Spec& spec, const Statistics& s, int64_t n) {
    if (!s.low) return;  // the bits of a magnitude are that float
    bool ranged = spec.asym || s.bare;
    int32_t *__restrict high = s.high, *__restrict low = s.low;
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i < n; i += 16) {
        __mmask16 lanes = lanes_of(n - i);
        __m512i most = _mm512_maskz_loadu_epi32(lanes, high + i);
        __m512i least = _mm512_maskz_loadu_epi32(lanes, low + i);
        __mmask16 some = _mm512_cmple_epi32_mask(least, most);
        __m512 above = _mm512_castsi512_ps(_mm512_maskz_mov_epi32(some, ordered16(most)));
        __m512 below = _mm512_castsi512_ps(_mm512_maskz_mov_epi32(some, ordered16(least)));
        if (ranged) above = _mm512_min_ps(_mm512_sub_ps(above, below), _mm512_set1_ps(kFltMax));
        _mm512_mask_storeu_epi32(high + i, lanes, _mm512_castps_si512(above));
        _mm512_mask_storeu_epi32(low + i, lanes, _mm512_castps_si512(below));
    }
#endif
    for (; i < n; ++i) {
        bool empty = low[i] > high[i];  // of finite values
        int32_t above = empty ? 0 : ordered(high[i]), below = empty ? 0 : ordered(low[i]);
        float range = from_bits(above) - from_bits(below);
        range = range > kFltMax ? kFltMax : range;
        high[i] = ranged ? to_bits(range) : above;
        low[i] = below;
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
