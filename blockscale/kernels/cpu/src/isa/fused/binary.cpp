// SPDX-License-Identifier: BSD-3-Clause
// Sums, differences, products and quotients of two tensors of one shape.
#include "rows.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

template <class Op>
inline void each(const float* a, const float* b, int64_t n, float* __restrict y, Op op) {
    for (int64_t i = 0; i < n; ++i) y[i] = op(a[i], b[i]);
}

inline void run_binary(Binary kind, const float* a, const float* b, int64_t n, float* y) {
    switch (kind) {
        case Binary::add: return each(a, b, n, y, [](float s, float t) { return s + t; });
        case Binary::sub: return each(a, b, n, y, [](float s, float t) { return s - t; });
        case Binary::mul: return each(a, b, n, y, [](float s, float t) { return s * t; });
        case Binary::div: return each(a, b, n, y, [](float s, float t) { return s / t; });
    }
}

}  // namespace

void fused_binary(Binary kind, const Rows& a, const Rows& b, int64_t rows, int64_t columns,
                  const Result& to, int threads) {
    for_row_units(rows, columns, threads, [&](int64_t row, int64_t count) {
        int64_t size = count * columns;
        Array<float> left(a.spec ? size : 1), right(b.spec ? size : 1);
        Array<float> values(to.values ? 1 : size);
        float* out = to.values ? to.values + row * columns : values.get();
        run_binary(kind, read_rows(a, columns, row, count, left),
                   read_rows(b, columns, row, count, right), size, out);
        write_codes(to, columns, row, count, out);
    });
}

}  // namespace blockscale::BLOCKSCALE_ISA
