// SPDX-License-Identifier: BSD-3-Clause
// The weight of a convolution in float32, panel by panel, and what its sums are scaled by.
#pragma once

#include "../../linear.h"
#include "../simd/array.h"
#include "../simd/floats.h"
#include "turn.h"

namespace blockscale::BLOCKSCALE_ISA {

const Primitives& primitives();

namespace {

// Whether every output has one step, none far from 1, so that sums of codes may be scaled late.
inline bool one_step_each(const FloatWeight& w) {
    if (w.spec->element.family != Family::integer || w.offsets || w.spec->zero != Stored::none) return false;
    if (w.grid.block_columns < w.grid.columns || w.grid.blocks() == 0) return false;
    for (int64_t i = 0; i < w.grid.blocks(); ++i)
        if (!(from_bits(to_bits(w.steps[i]) & INT32_MAX) <= 0x1p90f)) return false;
    return true;
}

// [panels][k][32] of numbers or, where sums are scaled late, of codes less their zero point.
struct Decoded {
    Decoded(const FloatWeight& w, const float* given_bias, bool late)
        : outputs(ceil_div(w.grid.rows, kPanel) * kPanel), is_late(late), weight(outputs * w.grid.columns),
          steps(outputs), bias(outputs) {
        memset(bias, 0, outputs * 4);
        if (given_bias) memcpy(bias, given_bias, w.grid.rows * 4);
        for (int64_t i = 0; late && i < outputs; ++i)
            steps[i] = w.steps[smaller(i, w.grid.rows - 1) / w.grid.block_rows];
        lay_out(w);
    }

    const float* late_steps() { return is_late ? steps.get() : nullptr; }

    bool finite(const FloatWeight& w) {
        bool all_of_them = true;
        for (int64_t i = 0; i < outputs * w.grid.columns; ++i)
            all_of_them &= (to_bits(weight[i]) & kInfinity) != kInfinity;
        return all_of_them;
    }

    int64_t outputs;
    bool is_late;
    Array<float> weight, steps, bias;

private:
    void lay_out(const FloatWeight& w) {
        int64_t k = w.grid.columns, stride = k + 16, blocks = w.grid.blocks() + 16;
        Array<float> line(stride * kPanel), ones(is_late ? blocks : 1);
        for (int64_t i = 0; is_late && i < blocks; ++i) ones[i] = 1.0f;
        const float* rows[kPanel];
        for (int64_t i = 0; i < kPanel; ++i) rows[i] = line + i * stride;
        for (int64_t first = 0; first < outputs; first += kPanel) {
            memset(line, 0, stride * kPanel * 4);
            primitives().decode(*w.spec, w.grid, w.codes, is_late ? ones.get() : w.steps, w.zero_points,
                                w.offsets, first, smaller(kPanel, w.grid.rows - first), 0, k, line, stride);
            turn(rows, kPanel, k, weight + first * k, kPanel);
        }
    }
};

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
