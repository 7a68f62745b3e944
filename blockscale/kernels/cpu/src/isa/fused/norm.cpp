// SPDX-License-Identifier: BSD-3-Clause
// Layer norm and RMS norm of rows, after a residual sum: one pass over memory, three over a row in L1.
//
// Sums have one order in every instruction set: 64 lanes, halved until one is left.
#include "rows.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kSums = 64;

// Sixteen numbers in as many registers as an instruction set needs.
typedef float Sixteen __attribute__((vector_size(64)));

BLOCKSCALE_INLINE void load(const float* from, Sixteen& to) { copy<sizeof to>(&to, from); }

// The sum of term(i, x[i] as Sixteen&) over n numbers, and of last(x[i]) for those that are left.
template <class Term, class Last>
BLOCKSCALE_INLINE float sum_of_terms(int64_t n, Term term, Last last) {
    Sixteen lanes[4] = {};
    int64_t i = 0;
    for (; i + kSums <= n; i += kSums) {
        term(i, lanes[0]);
        term(i + 16, lanes[1]);
        term(i + 32, lanes[2]);
        term(i + 48, lanes[3]);
    }
    alignas(64) float each[kSums];
    copy<sizeof each>(each, lanes);
    for (int64_t j = 0; i < n; ++i, ++j) each[j] += last(i);
    for (int64_t half = kSums / 2; half; half /= 2)
        for (int64_t j = 0; j < half; ++j) each[j] += each[j + half];
    return each[0];
}

// The sum of a and b (of a, if b is null), and a + b to `sums`.
inline float sum_rows(const float* a, const float* b, int64_t n, float* __restrict sums) {
    auto term = [&](int64_t i, Sixteen& sum) BLOCKSCALE_INLINE_LAMBDA {
        Sixteen x, y;
        load(a + i, x);
        if (b) {
            load(b + i, y);
            x += y;
            copy<sizeof x>(sums + i, &x);
        }
        sum += x;
    };
    auto last = [&](int64_t i) { return b ? sums[i] = a[i] + b[i] : a[i]; };
    return sum_of_terms(n, term, last);
}

// The sum of (x - mean)^2.
inline float sum_squares(const float* x, float mean, int64_t n) {
    auto term = [&](int64_t i, Sixteen& sum) BLOCKSCALE_INLINE_LAMBDA {
        Sixteen away;
        load(x + i, away);
        away -= mean;
        sum += away * away;
    };
    return sum_of_terms(n, term, [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
}

// The mean of numbers whose float32 sum this is. Near the largest float32 there is a mean where there is
// no sum.
inline float mean_of_row(float sum, const float* x, int64_t n) {
    if ((to_bits(sum) & INT32_MAX) < kInfinity) return sum / static_cast<float>(n);
    double wide = 0;
    for (int64_t i = 0; i < n; ++i) wide += x[i];
    return static_cast<float>(wide / static_cast<double>(n));
}

// y = (x - mean) * factor * weight + bias
inline void scale_row(const Norm& norm, const float* x, float mean, float factor, int64_t n,
                      float* __restrict y) {
    const float *weight = norm.weight, *bias = norm.bias;
    if (weight && bias) {
        for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * weight[i] + bias[i];
    } else if (weight) {
        for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor * weight[i];
    } else if (bias) {
        for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor + bias[i];
    } else {
        for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * factor;
    }
}

// One row of the norm of a + b, or of a. `sums` takes a + b.
inline void normalize(const Norm& norm, const float* a, const float* b, int64_t n, float* sums,
                      float* y) {
    float sum = norm.centered || b ? sum_rows(a, b, n, sums) : 0.0f;
    const float* x = b ? sums : a;
    float mean = norm.centered ? mean_of_row(sum, x, n) : 0.0f;
    float variance = sum_squares(x, mean, n) / static_cast<float>(n);
    scale_row(norm, x, mean, 1.0f / __builtin_sqrtf(variance + norm.eps), n, y);
}

}  // namespace

void fused_norm(const Norm& norm, const Rows& a, const Rows* b, int64_t rows, int64_t columns,
                float* sums, const Result& to, int threads) {
    for_row_units(rows, columns, threads, [&](int64_t row, int64_t count) {
        int64_t size = count * columns;
        Array<float> left(a.spec ? size : 1), right(b && b->spec ? size : 1);
        Array<float> sum(b && !sums ? columns : 1), values(to.values ? 1 : size);
        const float* x = read_rows(a, columns, row, count, left);
        const float* other = b ? read_rows(*b, columns, row, count, right) : nullptr;
        float* out = to.values ? to.values + row * columns : values.get();
        for (int64_t r = 0; r < count; ++r)
            normalize(norm, x + r * columns, other ? other + r * columns : nullptr, columns,
                      sums ? sums + (row + r) * columns : sum.get(), out + r * columns);
        write_codes(to, columns, row, count, out);
    });
}

}  // namespace blockscale::BLOCKSCALE_ISA
