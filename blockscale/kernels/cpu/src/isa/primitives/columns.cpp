// SPDX-License-Identifier: BSD-3-Clause
// Columns that are rounded one after the other, each making up for the errors of those before it
// (blockscale/ops/round_columns.py says what it computes). Rows know nothing of one another, so a unit
// is a strip of them, which stays in the cache while all its columns are rounded.
#include "rows.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kStripBytes = 128 << 10;  // of the numbers in progress of a unit: part of L2

// One column of a strip on its way: x, counted in steps, and what is left of it.
struct Stages {
    alignas(64) float x[kChunk], y[kChunk], zeros[kChunk], offsets[kChunk], steps[kChunk],
        factors[kChunk], values[kChunk];
    alignas(64) uint8_t codes[2 * kChunk + 64];
};

// x [n], the elements from `at` on, each a block -> s.codes and s.values.
void round_strip(const ColumnsTask& t, int64_t at, int64_t n, Stages& s) {
    const Spec& spec = t.spec;
    bool moved = spec.offset != Stored::none;
    table_steps(spec, t.layout, t.scales, at, n, s.steps);
    Factors by = block_factors(spec, t.layout, t.scales, at, n, s.steps, s.factors);
    if (moved) {
        load_offsets(spec, t.scales.offset, at, n, s.offsets);
        for (int64_t i = 0; i < n; ++i) s.x[i] -= s.offsets[i];
    }
    if (by.multiply) {
        for (int64_t i = 0; i < n; ++i) s.y[i] = s.x[i] * by.by[i];
    } else {
        for (int64_t i = 0; i < n; ++i) s.y[i] = s.x[i] / by.by[i];
    }
    if (spec.asym) load_zero_points(spec, t.scales.zero_point, at, n, s.zeros);
    if (spec.asym && spec.zero != Stored::none)
        for (int64_t i = 0; i < n; ++i) s.y[i] = (s.y[i] == s.y[i] ? s.y[i] : 0.0f) + s.zeros[i];
    const float* z = spec.asym ? s.zeros : nullptr;
    encode(spec, s.y, z, nullptr, n, s.codes);
    snap(spec, s.y, z, nullptr, n, s.values);
    for (int64_t i = 0; i < n; ++i) s.values[i] *= s.steps[i];
    for (int64_t i = 0; moved && i < n; ++i) s.values[i] += s.offsets[i];
}

// All columns of rows [first, first + n).
void run_strip(const ColumnsTask& t, int64_t first, int64_t n) {
    Array<double> pending(t.columns * n);
    Array<double> errors(n);
    Stages s;
    int64_t bytes = t.spec.code_bytes();
    for (int64_t j = 0; j < t.columns; ++j)
        memcpy(pending + j * n, t.wanted + j * t.rows + first, n * sizeof(double));
    for (int64_t j = 0; j < t.columns; ++j) {
        int64_t at = j * t.rows + first;
        const double* x = pending + j * n;
        for (int64_t i = 0; i < n; ++i) s.x[i] = static_cast<float>(x[i]);
        round_strip(t, at, n, s);
        memcpy(static_cast<uint8_t*>(t.codes) + at * bytes, s.codes, n * bytes);
        memcpy(t.values + at, s.values, n * sizeof(float));
        const double* from = t.base ? t.base + at : x;
        double* __restrict error = errors;
        for (int64_t i = 0; i < n; ++i) error[i] = from[i] - s.values[i];
        memcpy(t.errors + at, error, n * sizeof(double));
        const double* coupling = t.coupling + j * t.columns;
        for (int64_t l = j + 1; l < t.columns; ++l) {
            double* __restrict later = pending + l * n;
            double share = coupling[l];
            for (int64_t i = 0; i < n; ++i) later[i] -= error[i] * share;
        }
    }
}

}  // namespace

void round_columns(const ColumnsTask& t, int threads) {
    int64_t strip = kStripBytes / (8 * larger(t.columns, 1)) / 16 * 16;
    strip = smaller(larger(strip, 16), kChunk);
    for_units(ceil_div(t.rows, strip), threads, t.rows * t.columns >= chosen(Choice::threaded_elements), [&](int64_t unit) {
        int64_t first = unit * strip;
        run_strip(t, first, smaller(strip, t.rows - first));
    });
}

}  // namespace blockscale::BLOCKSCALE_ISA
