// SPDX-License-Identifier: BSD-3-Clause
#include "linear_weight.h"

#include <algorithm>
#include <cstring>

namespace blockscale {

namespace {

int64_t size_of(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

// One matrix, or a part of one, and its rows.
struct Task {
    int64_t group, part, rows;
};

// Calls run(task, threads) for each: large ones first, with all threads, then the others side by side.
template <class Run>
void each_task(const Groups& g, int threads, Run run) {
    std::vector<Task> tasks;
    for (int64_t group = 0; group < g.groups(); ++group)
        for (int64_t part = 0; part < g.parts(); ++part)
            tasks.push_back({group, part, g.bounds[group + 1] - g.bounds[group]});
    std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.rows > b.rows; });
    int team = startable(threads);
    int64_t count = static_cast<int64_t>(tasks.size()), all = g.bounds.back() * g.parts(), large = 0;
    if (team > 1)
        while (large < count && tasks[large].rows * 2 * team > all) run(tasks[large++], team);
    Lack lack;
#pragma omp parallel for schedule(dynamic, 1) num_threads(team) if (count - large > 1)
    for (int64_t i = large; i < count; ++i) lack.carry([&] { run(tasks[i], 1); });
    lack.raise();
}

// Where the results of a task go: y itself where a matrix is one part, else memory that is copied from.
class Place {
public:
    Place(const Groups& g, const Task& task, void* y, Dtype dtype)
        : rows_(task.rows), width_(g.outputs / g.parts() * size_of(dtype)), stride_(g.outputs * size_of(dtype)),
          to_(static_cast<char*>(y) + g.bounds[task.group] * stride_ + task.part * width_) {
        if (width_ != stride_) own_.resize(rows_ * width_);
    }

    void* data() { return own_.empty() ? to_ : own_.data(); }

    void done() const {
        if (own_.empty()) return;
        for (int64_t row = 0; row < rows_; ++row)
            std::memcpy(to_ + row * stride_, own_.data() + row * width_, width_);
    }

private:
    int64_t rows_, width_, stride_;
    char* to_;
    Numbers<char> own_;
};

const char* rows_of(const Groups& g, const Task& task, const void* x, Dtype dtype) {
    return static_cast<const char*>(x) + g.bounds[task.group] * g.k * size_of(dtype);
}

Output output_of(const Groups& g, const Task& task, Place& to, Dtype dtype) {
    const float* bias = g.biases.empty() ? nullptr : g.biases[task.group];
    if (bias) bias += task.part * (g.outputs / g.parts());
    return {bias, to.data(), dtype, Activation::none, nullptr, nullptr, 0};
}

LinearWeight& weight_of(const Groups& g, const Task& task) {
    return *g.weights[task.group * g.parts() + task.part];
}

}  // namespace

void grouped_floats(const Groups& g, const void* x, Dtype dtype, void* y, Dtype y_dtype, int threads,
                    bool in_order) {
    each_task(g, threads, [&](const Task& task, int team) {
        Place to(g, task, y, y_dtype);
        weight_of(g, task).floats(rows_of(g, task, x, dtype), dtype, task.rows,
                                  output_of(g, task, to, y_dtype), team, in_order);
        to.done();
    });
}

std::vector<int64_t> grouped_integers(const Groups& g, const NativeFormat& format, const void* x, Dtype dtype,
                                      int64_t block, const std::vector<const void*>& scales,
                                      const std::vector<const int32_t*>& zero_points, void* y,
                                      Dtype y_dtype, int threads) {
    std::vector<char> refused(g.weights.size(), 0);
    each_task(g, threads, [&](const Task& task, int team) {
        Place to(g, task, y, y_dtype);
        IntegerInput in{rows_of(g, task, x, dtype), dtype, task.rows, nullptr, block,
                        scales.empty() ? nullptr : scales[task.group],
                        zero_points.empty() ? nullptr : zero_points[task.group], false, nullptr, 0};
        bool given = weight_of(g, task).integers(format, in, output_of(g, task, to, y_dtype), team);
        if (given) to.done();
        refused[task.group * g.parts() + task.part] = !given;
    });
    std::vector<int64_t> found;
    for (int64_t group = 0; group < g.groups(); ++group) {
        const char* of = refused.data() + group * g.parts();
        if (std::any_of(of, of + g.parts(), [](char each) { return each != 0; })) found.push_back(group);
    }
    return found;
}

}  // namespace blockscale
