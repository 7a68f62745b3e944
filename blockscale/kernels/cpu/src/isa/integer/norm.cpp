// SPDX-License-Identifier: BSD-3-Clause
// Layer norm and RMS norm of codes: blockscale/ops/integer/norms.py, a row at a time.
#include "../simd/array.h"
#include "ending.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int kFraction = 15;

// floor(sqrt(x)) for x < 2^62. The float root is within one of it; the products say which it is.
inline int64_t root_of(int64_t x) {
    int64_t root = static_cast<int64_t>(__builtin_sqrt(static_cast<double>(x)));
    while (root * root > x) --root;
    while ((root + 1) * (root + 1) <= x) ++root;
    return root;
}

// What brings n * x - total to units of 2^-kFraction: times inverse, shifted.
struct Inverse {
    int64_t factor;
    int right;
};

inline Inverse inverse_of(int64_t variance) {
    variance = larger(variance, 1);
    int half = (62 - (64 - __builtin_clzll(variance))) >> 1;
    int64_t root = root_of(variance << (2 * half));
    return {(int64_t(1) << 61) / root, 61 - kFraction - half};
}

template <class T>
inline void normalize(const IntegerNorm& norm, const T* from, int64_t n, int32_t* __restrict x,
                      int64_t* __restrict sums) {
    int32_t zero = norm.x.zero;
    int64_t total = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
        x[i] = static_cast<int32_t>(from[i]) - zero;
        total += x[i];
        squares += static_cast<int64_t>(x[i]) * x[i];
    }
    if (!norm.centered) total = 0;
    auto [factor, right] = inverse_of(n * squares - total * total + norm.epsilon);
    int32_t count = static_cast<int32_t>(n), all = static_cast<int32_t>(total), by = factor;
    // 2^31 is no int32; it is the factor of a root of 2^30, whose product is a shift as well
    int64_t wide = factor, half = int64_t(1) << (right - 1);
    if (by == wide) {
        for (int64_t i = 0; i < n; ++i) {
            int32_t away = x[i] * count - all;
            sums[i] = (static_cast<int64_t>(away) * by + half) >> right;
        }
    } else {
        for (int64_t i = 0; i < n; ++i)
            sums[i] = ((static_cast<int64_t>(x[i]) * n - total) * wide + half) >> right;
    }
}

inline void scale(const IntegerNorm& norm, int64_t n, int64_t* __restrict sums) {
    const int32_t* weight = norm.weight;
    const int64_t* bias = norm.bias;
    if (weight)
        for (int64_t i = 0; i < n; ++i)  // both are int32
            sums[i] = static_cast<int64_t>(static_cast<int32_t>(sums[i])) * weight[i];
    if (bias)
        for (int64_t i = 0; i < n; ++i) sums[i] += bias[i];
}

}  // namespace

void integer_norm(const IntegerNorm& norm, int64_t rows, int64_t columns, const Ending& to,
                  int threads) {
    int64_t height = larger(1, chosen(Choice::unit_elements) / larger(columns, 1));
    for_units(ceil_div(rows, height), threads, rows * columns >= chosen(Choice::threaded_elements), [&](int64_t unit) {
        Array<int32_t> x(columns);
        Array<int64_t> sums(columns);
        int64_t last = smaller(rows, (unit + 1) * height);
        for (int64_t row = unit * height; row < last; ++row) {
            with_type(norm.x.type, [&](auto* type) {
                auto* from = static_cast<decltype(type)>(norm.x.data) + row * columns;
                normalize(norm, from, columns, x.get(), sums.get());
            });
            scale(norm, columns, sums.get());
            end(to, sums.get(), row * columns, columns);
        }
    });
}

}  // namespace blockscale::BLOCKSCALE_ISA
