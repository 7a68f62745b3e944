// SPDX-License-Identifier: BSD-3-Clause
// Linear layers of many rows of float x on the matrix unit, by products of bf16 numbers. A float32 is the
// sum of up to three of them, its parts, and most weights need only one. Products of parts are exact; only
// those below 2^-22 of the whole are left out. Where the unit, which takes subnormals for 0, could change a
// result by more than float32 rounds, float.cpp computes all of it.
#include "../simd/environment.h"
#include "amx/numbers.h"

namespace blockscale::BLOCKSCALE_ISA {

#if defined(BLOCKSCALE_MATRICES)

namespace {

// Sums [rows][32] += a piece of a tile of x times that of a panel.
template <bool TALL>
void multiply(Tiles& tiles, const uint16_t* x, const uint16_t* w, int64_t x_parts, int64_t w_parts,
              int64_t steps, float* sums) {
    constexpr int64_t kRow = kPanel * 4, kSide = TALL ? 32 : 16;  // bytes
    float* low = sums + kMatrixRows * kPanel;
    tiles.load<0>(sums, kRow), tiles.load<1>(sums + 16, kRow);
    if constexpr (TALL) tiles.load<2>(low, kRow), tiles.load<3>(low + 16, kRow);
    for (int64_t step = 0; step < steps; ++step, x += x_parts * kSide * kAlong) {
        const char* next = reinterpret_cast<const char*>(x + x_parts * kSide * kAlong);
        for (int64_t i = 0; i < x_parts * kSide * kAlong * 2; i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
        for (int64_t part = 0; part < w_parts; ++part, w += kPart) {
            tiles.load<6>(w, kRow), tiles.load<7>(w + kAlong, kRow);
            for (int64_t other = 0; other < smaller(x_parts, kParts - part); ++other) {
                const uint16_t* rows = x + other * kSide * kAlong;
                tiles.load<4>(rows, kMatrixBytes);
                tiles.dot_bf16<0, 4, 6>(), tiles.dot_bf16<1, 4, 7>();
                if constexpr (TALL) {
                    tiles.load<5>(rows + kMatrixRows * kAlong, kMatrixBytes);
                    tiles.dot_bf16<2, 5, 6>(), tiles.dot_bf16<3, 5, 7>();
                }
            }
        }
    }
    tiles.store<0>(sums, kRow), tiles.store<1>(sums + 16, kRow);
    if constexpr (TALL) tiles.store<2>(low, kRow), tiles.store<3>(low + 16, kRow);
}

// The sums of a block, of 16 rows and 16 outputs.
struct BlockProducts {
    static constexpr bool kIntegers = false;
    const uint16_t *w, *x;
    int64_t part, parts;  // numbers of a part of x in one product, and how many parts
    int64_t steps, all;   // products of a block; of all there are, the last of which may have fewer
    bool x_near;          // x is in the first-level cache

    template <int T>
    [[gnu::always_inline]] inline void sum(Tiles& tiles, int64_t block) const {
        tiles.template zero<T>();
        for (int64_t step = block * steps; step < smaller(all, (block + 1) * steps); ++step) {
            tiles.template load<6 + T % 2>(w + step * kPart, kPanel * 4);
            for (int64_t i = 0; i < parts; ++i) {
                const uint16_t* rows = x + (step * parts + i) * part;
                for (int64_t line = 0; line < kMatrixRows && !x_near; ++line)
                    _mm_prefetch(reinterpret_cast<const char*>(rows + 2 * parts * part + line * kAlong),
                                 _MM_HINT_T0);
                tiles.template load<4 + T % 2>(rows, kMatrixBytes);
                tiles.template dot_bf16<T, 4 + T % 2, 6 + T % 2>();
            }
        }
    }
};

// The same as `multiply` of a weight in one part whose blocks are scaled late.
template <bool TALL>
void multiply_late(Tiles& tiles, const uint16_t* x, const Buffers& b, int64_t x_parts, int64_t block_steps,
                   int64_t steps, float* sums) {
    constexpr int64_t kSide = TALL ? 32 : 16;
    for (int64_t row = 0; row < kSide; row += kMatrixRows)
        for (int64_t half = 0; half < 2; ++half) {
            BlockProducts products{b.weight + half * kAlong, x + row * kAlong, kSide * kAlong, x_parts,
                                   block_steps, steps, half == 1};
            ScaledBlocks<BlockProducts, false> blocks(tiles, products, {b.late + half * 16, nullptr, 0});
            blocks.add(ceil_div(steps, block_steps), sums + row * kPanel + half * 16);
        }
}

// A panel's sums -> y, with the bias. `scales`: of its outputs.
void store_panel(const Work& p, int64_t panel, const float* sums, const float* scales) {
    int64_t from = panel * kPanel, count = smaller(kPanel, p.n() - from);
    int64_t bytes = dtype_bytes(p.out.dtype);
    float bias[kPanel] = {}, line[kPanel];
    if (p.out.bias) memcpy(bias, p.out.bias + from, count * 4);
    for (int64_t row = 0; row < p.rows; ++row, sums += kPanel) {
        for (int64_t i = 0; i < kPanel; ++i) line[i] = sums[i] * scales[i] + bias[i];
        char* y = static_cast<char*>(p.out.y) + ((p.first + row) * p.n() + from) * bytes;
        if (p.out.dtype == Dtype::fp32) {
            memcpy(y, line, count * 4);
        } else {
            narrow(line, p.out.dtype, count, reinterpret_cast<uint16_t*>(y));
        }
    }
}

// A piece of all rows of x times one of a panel, while the codes of the next one come: [next, column].
void multiply_rows(const Work& p, int64_t column, int64_t steps, int64_t parts, int64_t next,
                   int64_t next_column, const Buffers& b, float* sums, Tiles& tiles) {
    int64_t tiles_of_x = p.tiles(), block_steps = larger(1, p.w->grid.block_columns / kAlong);
    for (int64_t tile = 0; tile < tiles_of_x; ++tile, sums += kTileRows * kPanel) {
        int64_t side = p.side(tile);
        bool tall = side == kTileRows;
        const uint16_t* x = p.x_parts + tile * kTileRows * p.row_parts() + column * p.parts * side;
        if (next_column < p.k())
            fetch_codes(p, next, next_column, tile * kPanel / tiles_of_x, (tile + 1) * kPanel / tiles_of_x);
        if (p.late == Late::blocks) {
            auto run = tall ? multiply_late<true> : multiply_late<false>;
            run(tiles, x, b, p.parts, block_steps, steps, sums);
        } else {
            auto run = tall ? multiply<true> : multiply<false>;
            run(tiles, x, b.weight, p.parts, parts, steps, sums);
        }
    }
}

// Panels from `begin` to `end`. False if the weight is not tame beside x.
bool run_panels(const Work& p, int64_t begin, int64_t end, const Range& x, Tiles& tiles) {
    Buffers b(p);
    int64_t size = p.tiles() * kTileRows * kPanel;
    memset(b.sums, 0, (end - begin) * size * 4);
    for (int64_t column = 0; column < p.k(); column += p.depth) {
        int64_t steps = ceil_div(smaller(p.depth, p.k() - column), kAlong);
        for (int64_t panel = begin; panel < end; ++panel) {
            Range range = split_panel(p, panel, column, steps, b);
            bool one_part = p.late != Late::blocks || range.parts() == 1;  // zero points may be far
            if (!tame(range, x) || !one_part || !find_late(p, panel, column, b)) return false;
            bool last = panel + 1 == end;
            multiply_rows(p, column, steps, range.parts(), last ? begin : panel + 1,
                          last ? column + p.depth : column, b, b.sums + (panel - begin) * size, tiles);
        }
    }
    float scales[kPanel];
    for (float& each : scales) each = p.late == Late::outer ? p.w->outer : 1.0f;
    for (int64_t panel = begin; panel < end; ++panel) {
        if (p.late == Late::rows) {
            find_late(p, panel, 0, b);
            copy<sizeof scales>(scales, b.late);
        }
        store_panel(p, panel, b.sums + (panel - begin) * size, scales);
    }
    return true;
}

bool run_rows(const Work& p, int threads) {
    int64_t panels = ceil_div(p.n(), kPanel), groups = ceil_div(panels, p.panels);
    Lack lack;
    int high = 0, low = INT32_MAX, wild = 0;
#pragma omp parallel num_threads(startable(threads)) if (threads > 1)
    {
        FullPrecision guard;
        Tiles tiles(kMatrixBytes);
#pragma omp for schedule(static) reduction(max : high) reduction(min : low)
        for (int64_t row = 0; row < p.rows; ++row) {
            Range range = split_row(p, row);
            high = static_cast<int>(larger(high, range.high));
            low = static_cast<int>(smaller(low, range.low));
        }
        Range x{high, low, 0};
#pragma omp for schedule(dynamic) reduction(| : wild)
        for (int64_t group = 0; group < groups; ++group) lack.carry([&] {
            int64_t begin = group * p.panels, end = smaller(panels, begin + p.panels);
            wild |= !run_panels(p, begin, end, x, tiles);
        });
    }
    lack.raise();
    return !wild;
}

// Rows of x from which matrices are faster: the more parts its numbers and the weight's have, the more
// products there are. Powers of two leave an element one part, and so does what comes once, late.
int64_t fewest_rows(const Spec& spec, Dtype dtype, Late late) {
    bool power = spec.scale == ScaleKind::e8m0 || spec.scale == ScaleKind::pow2;
    bool one_part = (power && spec.element.bits <= 8 && spec.offset == Stored::none) ||
                    late == Late::outer || late == Late::rows;
    if (dtype == Dtype::bf16)
        return chosen(one_part ? Choice::bf16_rows_float : Choice::bf16_rows_of_parts_float);
    return chosen(one_part ? Choice::wide_rows_float : Choice::wide_rows_of_parts_float);
}

// How many parts numbers of x need: float32 ones may have few bits, those that were quantized.
int64_t parts_of(const void* x, Dtype dtype, int64_t rows, int64_t k, int threads) {
    if (dtype != Dtype::fp32) return dtype == Dtype::bf16 ? 1 : 2;
    auto of_row = [&](int64_t row) {
        alignas(64) float last[kAlong] = {};
        const float* from = static_cast<const float*>(x) + row * k;
        int64_t whole = k / kAlong * kAlong;
        memcpy(last, from + whole, (k - whole) * 4);
        Range range = range_of(from, whole);
        range.add(range_of(last, kAlong));
        return range.all;
    };
    int all = of_row(0);
    if (Range{0, 0, all}.parts() == kParts) return kParts;
#pragma omp parallel for num_threads(startable(threads)) if (threads > 1) reduction(| : all)
    for (int64_t row = 0; row < rows; ++row) all |= of_row(row);
    return Range{0, 0, all}.parts();
}

}  // namespace

bool float_matrices(const FloatWeight& w, const void* x, Dtype dtype, int64_t rows,
                    const Output& out, int threads) {
    Late late = late_of(w);
    if (rows < fewest_rows(*w.spec, dtype, late)) return false;
    if (w.grid.columns == 0 || w.grid.rows == 0 || rows == 0) return false;
    Work p{.w = &w, .late = late, .depth = kDepth, .x = x, .dtype = dtype, .out = out,
           .parts = parts_of(x, dtype, rows, w.grid.columns, threads),
           .panels = 1, .first = 0, .rows = rows, .x_parts = nullptr};
    if (p.parts > 1 && late == Late::blocks) p.depth = kLeastDepth;
    int64_t share = ceil_div(p.n(), kPanel) / (2 * threads);
    p.panels = smaller(chosen(Choice::matrix_panels), larger(1, share));
    int64_t fit = larger(1, kBytes / (p.row_parts() * 2) / kTileRows) * kTileRows;
    int64_t most = smaller(ceil_div(rows, kTileRows) * kTileRows, smaller(fit, kRows));
    p.x_parts = reinterpret_cast<uint16_t*>(linear_scratch().of(most * p.row_parts() * 2));
    for (p.first = 0; p.first < rows; p.first += most) {
        p.rows = smaller(most, rows - p.first);
        if (!run_rows(p, threads)) return false;
    }
    return true;
}

#else

bool float_matrices(const FloatWeight&, const void*, Dtype, int64_t, const Output&, int) {
    return false;
}

#endif

}  // namespace blockscale::BLOCKSCALE_ISA
