// SPDX-License-Identifier: BSD-3-Clause
// Rows that are sorted by matrix, each group times a matrix of its own: the experts of a mixture.
#pragma once

#include <cstdint>
#include <vector>

#include "linear_weight.h"

namespace blockscale {

// Groups of rows [rows, k], one after another, and what multiplies each.
struct Groups {
    std::vector<LinearWeight*> weights;  // [groups][parts]: matrices [outputs / parts, k]
    std::vector<int64_t> bounds;         // [groups + 1]: where the rows of each begin; none is empty
    std::vector<const float*> biases;    // [groups] of [outputs]; empty: none
    int64_t outputs, k;

    int64_t groups() const { return static_cast<int64_t>(bounds.size()) - 1; }
    int64_t parts() const { return static_cast<int64_t>(weights.size()) / groups(); }
};

// x and y as a LinearWeight takes them, of all rows. Groups that are a small part of the work share one
// parallel region, each on one thread; any other has all threads. What is computed does not depend on it.
void grouped_floats(const Groups& g, const void* x, Dtype dtype, void* y, Dtype y_dtype, int threads,
                    bool in_order);

// The same in integer arithmetic, each group of x quantized by itself. scales, zero_points: of each group,
// as IntegerInput has them; null: chosen. Returns the groups that it cannot give, of which nothing counts.
std::vector<int64_t> grouped_integers(const Groups& g, const NativeFormat& format, const void* x, Dtype dtype,
                                      int64_t block, const std::vector<const void*>& scales,
                                      const std::vector<const int32_t*>& zero_points, void* y,
                                      Dtype y_dtype, int threads);

}  // namespace blockscale
