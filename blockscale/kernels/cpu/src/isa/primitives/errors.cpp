// SPDX-License-Identifier: BSD-3-Clause
// What a round trip loses of each block, in float64 and in one order of additions (numerics.md, 3.5, 4/6):
// formats whose blocks choose between two scales compare these, so a last bit decides what is stored.
#include "rows.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// e [n], n a power of two -> their sum: those of i and i + n / 2 become one, until one is left.
template <int N>
inline double halved(double* e) {
    if constexpr (N > 1) {
        for (int i = 0; i < N / 2; ++i) e[i] = e[i] + e[i + N / 2];
        return halved<N / 2>(e);
    }
    return e[0];
}

// The same for any n: an odd number of them has a 0 behind it.
inline double halved(double* e, int64_t n) {
    while (n > 1) {
        int64_t half = (n + 1) / 2;
        for (int64_t i = 0; i < n - half; ++i) e[i] = e[i] + e[i + half];
        if (n % 2) e[half - 1] = e[half - 1] + 0.0;
        n = half;
    }
    return e[0];
}

inline void squares(const float* x, const float* values, int64_t n, double* e) {
    for (int64_t i = 0; i < n; ++i) {
        double lost = static_cast<double>(values[i]) - static_cast<double>(x[i]);
        e[i] = lost * lost;
    }
}

// x and its values [n], whole blocks of `size` but for the last one -> the error of each.
void add_up(const float* x, const float* values, int64_t n, int64_t size, double* errors) {
    alignas(64) double e[kChunk];
    int64_t block = 0;
    for (int64_t i = 0; i < n; i += size, ++block) {
        int64_t length = smaller(size, n - i);
        squares(x + i, values + i, length, e);
        for (int64_t k = length; k < size; ++k) e[k] = 0.0;
        errors[block] = size == 16 ? halved<16>(e) : size == 32 ? halved<32>(e) : halved(e, size);
    }
}

}  // namespace

bool block_errors(const Spec& spec, const Layout& layout, const void* x, Dtype dtype, QParams scales,
                  double* errors, int threads) {
    Grid g = flattened(layout.grid);
    int64_t size = smaller(g.block_columns, g.columns), rows = g.planes * g.rows;
    if (g.block_rows != 1 || g.block_planes != 1 || g.outer || g.interleaved || size > kChunk) return false;
    int64_t piece = kChunk / size * size, pieces = ceil_div(g.columns, piece);
    int64_t blocks = g.scale_columns();
    for_units(rows * pieces, threads, g.size() >= chosen(Choice::threaded_elements), [&](int64_t unit) {
        FullPrecision guard;
        alignas(64) float wide[kChunk], values[kChunk];
        int64_t row = unit / pieces, column = unit % pieces * piece, n = smaller(piece, g.columns - column);
        int64_t at = row * blocks + column / size, count = ceil_div(n, size);
        Array<float> steps(count), factors(count), zeros(count), offsets(count);
        table_steps(spec, layout, scales, at, count, steps);
        Factors by = block_factors(spec, layout, scales, at, count, steps, factors);
        bool moved = spec.offset != Stored::none;
        if (moved) load_offsets(spec, scales.offset, at, count, offsets);
        if (spec.asym) load_zero_points(spec, scales.zero_point, at, count, zeros);
        const float* from = widen(x, dtype, row * g.columns + column, n, wide);
        Task t{.spec = spec, .grid = {1, 1, n, 1, 1, size}, .job = Job::values, .x = from,
               .dtype = Dtype::fp32, .to = values};
        run_chunk(t, {0, 0, n}, {steps, by, spec.asym ? zeros.get() : nullptr, moved ? offsets.get() : nullptr});
        add_up(from, values, n, size, errors + at);
    });
    return true;
}

}  // namespace blockscale::BLOCKSCALE_ISA
