// SPDX-License-Identifier: BSD-3-Clause
// A weight made ready for linear layers, once: its steps, and on demand the integer kernels' panels.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "linear.h"
#include "memory.h"
#include "native_format.h"

namespace blockscale {

struct Free {
    void operator()(void* data) const { std::free(data); }
};

class LinearWeight {
public:
    // codes [n, k] packed as docs/numerics.md, section 6, says. They and the scale must outlive this.
    LinearWeight(std::shared_ptr<NativeFormat> format, int64_t n, int64_t k, const void* codes,
                 QParams scale);

    // Whether a sample of the codes and scales is what it was: a guard against changes that torch
    // does not count, such as those made through `Tensor.data` or a numpy view.
    bool unchanged() const { return sample() == sample_; }

    // False, and nothing done, where integer arithmetic cannot give the result.
    bool integers(const NativeFormat& x_format, IntegerInput x, const Output& y, int threads);
    // in_order: as Linears::floats
    void floats(const void* x, Dtype dtype, int64_t rows, const Output& y, int threads, bool in_order);
    // A convolution; scale: the one of codes, as stored. False, and nothing done, if that is far from 1
    // or the weight is not finite.
    bool direct(Image x, const void* scale, const Output& y, int threads);
    // A convolution of planes (linear.h), quantized as `format` says, if it is there, by the given scale or
    // one that is chosen from x. False, and nothing done, as above.
    bool planes(const NativeFormat* format, Image x, QParams given, const Output& y, int threads);

private:
    enum class State { unknown, yes, no };

    bool integers_fit(const Spec& x, int64_t x_block) const;
    bool pack(int threads);
    // The sums of the weight's codes over blocks of so many; made once.
    const int32_t* sums_of(int64_t block, int threads);
    const PlaneWeight* plane_weight(const PlaneShape& shape);
    uint64_t sample() const;

    std::shared_ptr<NativeFormat> format_;
    FloatWeight float_;
    QParams scale_;
    int64_t scale_bytes_;
    Numbers<float> steps_, zero_points_, offsets_;
    Numbers<uint8_t> scale_codes_;
    uint64_t sample_;

    std::mutex lock_;  // for what follows
    State packed_ = State::unknown;
    IntegerWeight integer_;
    std::unique_ptr<uint8_t, Free> panels_;
    Numbers<float> panel_scales_;
    Numbers<int32_t> panel_zeros_;
    std::map<int64_t, Numbers<int32_t>> sums_;  // by block
    struct Planes {
        State state = State::unknown;
        Numbers<int8_t> codes;
        Numbers<int32_t> sums;
        PlaneWeight weight;
    };
    std::map<const Linears*, Planes> planes_;  // by instruction set
    PlaneShape plane_shape_{};                 // of the first convolution with this weight
    std::map<const Linears*, int64_t> few_;  // by instruction set: to find it reads all of the weight
};

// How a given scale makes codes of results. False where the linear kernels cannot: other elements than
// integers, other roundings, zero points far from any code.
bool codes_of(const NativeFormat& format, const void* scale, const int32_t* zero_point, Codes* codes);

// 64 bits that differ, but for one chance in 2^64, if the bytes do.
uint64_t fingerprint(const void* data, int64_t bytes, int threads);

// Rows that are sorted by matrix, each group times a matrix of its own: the experts of a mixture
// (grouped.cpp).

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
