// SPDX-License-Identifier: BSD-3-Clause
// Linear layers of float x with weights of any format: rows of the weight are decoded a panel at a
// time into L2 and multiplied from there. Vectors run along the rows of x, which is transposed once,
// so a decoded weight is one broadcast and nothing is summed across lanes. With very few rows most
// lanes would be empty: then vectors run along k.
#include "../../linear.h"
#include "../../tuning.h"
#include "../simd/array.h"
#include "../simd/environment.h"
#include "../simd/floats.h"
#include "scratch.h"
#include "vector.h"

namespace blockscale::BLOCKSCALE_ISA {

const Primitives& primitives();
// False if the matrix unit is not there, or the numbers are not for it: then y may hold anything.
bool float_matrices(const FloatWeight&, const void* x, Dtype, int64_t rows, const Output&,
                    int threads);

namespace {

constexpr int64_t kDepth = 512;         // of a decoded panel, along k; fills whole bytes
constexpr int64_t kStride = kDepth + 16;  // rows a power of two apart would share few cache lines
constexpr int64_t kOutputs = 4 * kTileOutputs;  // of a panel
constexpr int64_t kBytes = 8 << 20;     // of transposed x at a time
constexpr int64_t kDots = 4;            // rows of x up to which vectors run along k

struct Work {
    const FloatWeight* w;
    const void* x;
    Dtype dtype;
    Output out;
    int64_t first, rows;   // of x in scratch
    int64_t strip;         // rows of x side by side: one vector or two; 1: vectors run along k
    int64_t strips;
    float* transposed;     // [strip][k][rows of a strip]

    int64_t k() const { return w->grid.columns; }
    int64_t n() const { return w->grid.rows; }
};

// R outputs times V vectors of rows: sums [output][strip rows] += weight [output][depth] * x.
template <int R, int V>
void run_tile(const float* weight, const float* x, int64_t depth, float* sums, int64_t stride) {
    Vector sum[R][V];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] = load(sums + r * stride + v * kFloats);
    for (int64_t i = 0; i < depth; ++i, x += V * kFloats) {
        Vector rows[V];
        for (int v = 0; v < V; ++v) rows[v] = load(x + v * kFloats);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            Vector code = all(weight[r * kStride + i]);
            for (int v = 0; v < V; ++v) sum[r][v] = multiply_add(code, rows[v], sum[r][v]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) store(sums + r * stride + v * kFloats, sum[r][v]);
}

float dot(const float* a, const float* b, int64_t n) {
    Vector sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * kFloats <= n; i += 4 * kFloats)
        for (int v = 0; v < 4; ++v)
            sums[v] = multiply_add(load(a + i + v * kFloats), load(b + i + v * kFloats), sums[v]);
    Vector lanes = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = 0.0f;
    for (int lane = 0; lane < kFloats; ++lane) sum += lanes[lane];
    for (; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

// A strip of x: rows become lanes. Rows that do not exist are zeros and their sums are not stored.
void transpose_strip(const Work& p, int64_t strip) {
    constexpr int64_t kPiece = 64;
    alignas(64) float buffer[kPiece];
    int64_t from = strip * p.strip, count = smaller(p.strip, p.rows - from);
    float* to = p.transposed + strip * p.strip * p.k();
    if (count < p.strip) memset(to, 0, p.strip * p.k() * sizeof(float));
    for (int64_t column = 0; column < p.k(); column += kPiece) {
        int64_t n = smaller(kPiece, p.k() - column);
        for (int64_t row = 0; row < count; ++row) {
            int64_t at = (p.first + from + row) * p.k() + column;
            const float* x = widen(p.x, p.dtype, at, n, buffer);
            for (int64_t i = 0; i < n; ++i) to[(column + i) * p.strip + row] = x[i];
        }
    }
}

struct Buffers {
    explicit Buffers(const Work& p)
        : weight(kOutputs * kStride), sums(kOutputs * p.strips * p.strip) {}

    Array<float> weight, sums;
};

// The sums of one panel of outputs over a piece of k.
template <int V>
void add_piece(const Work& p, int64_t column, int64_t depth, Buffers& b) {
    int64_t stride = p.strips * p.strip;
    for (int64_t strip = 0; strip < p.strips; ++strip)
        for (int64_t r = 0; r < kOutputs; r += kTileOutputs)
            run_tile<kTileOutputs, V>(b.weight + r * kStride,
                                      p.transposed + (strip * p.k() + column) * p.strip, depth,
                                      b.sums + r * stride + strip * p.strip, stride);
}

void add_dots(const Work& p, int64_t column, int64_t depth, Buffers& b) {
    for (int64_t output = 0; output < kOutputs; ++output)
        for (int64_t row = 0; row < p.rows; ++row)
            b.sums[output * p.strips + row] +=
                dot(b.weight + output * kStride, p.transposed + row * p.k() + column, depth);
}

// sums [output][row] -> y [row][output], with the bias.
void store_panel(const Work& p, int64_t from, int64_t count, const float* sums) {
    int64_t stride = p.strips * p.strip, bytes = dtype_bytes(p.out.dtype);
    float bias[kOutputs] = {}, line[kOutputs];
    if (p.out.bias) memcpy(bias, p.out.bias + from, count * sizeof(float));
    for (int64_t row = 0; row < p.rows; ++row) {
        for (int64_t i = 0; i < count; ++i) line[i] = sums[i * stride + row] + bias[i];
        char* y = static_cast<char*>(p.out.y) + ((p.first + row) * p.n() + from) * bytes;
        if (p.out.dtype == Dtype::fp32) {
            memcpy(y, line, count * sizeof(float));
        } else {
            narrow(line, p.out.dtype, count, reinterpret_cast<uint16_t*>(y));
        }
    }
}

void run_panel(const Work& p, int64_t panel, Buffers& b) {
    int64_t from = panel * kOutputs, count = smaller(kOutputs, p.n() - from);
    memset(b.sums, 0, kOutputs * p.strips * p.strip * sizeof(float));
    if (count < kOutputs) memset(b.weight, 0, kOutputs * kStride * sizeof(float));
    for (int64_t column = 0; column < p.k(); column += kDepth) {
        int64_t depth = smaller(kDepth, p.k() - column);
        primitives().decode(*p.w->spec, p.w->grid, p.w->codes, p.w->steps, p.w->zero_points,
                            p.w->offsets, from, count, column, depth, b.weight, kStride);
        if (p.strip == 1) {
            add_dots(p, column, depth, b);
        } else if (p.strip == kFloats) {
            add_piece<1>(p, column, depth, b);
        } else {
            add_piece<2>(p, column, depth, b);
        }
    }
    store_panel(p, from, count, b.sums);
}

void run_rows(const Work& p, int threads) {
    int64_t panels = ceil_div(p.n(), kOutputs);
    Lack lack;
#pragma omp parallel num_threads(startable(threads)) if (threads > 1)
    {
        FullPrecision guard;
        Later<Buffers> buffers;
        lack.carry([&] { buffers.make(p); });
#pragma omp for schedule(static)
        for (int64_t strip = 0; strip < p.strips; ++strip) transpose_strip(p, strip);
#pragma omp for schedule(dynamic)
        for (int64_t panel = 0; panel < panels; ++panel)
            lack.carry([&] { run_panel(p, panel, *buffers); });
    }
    lack.raise();
}

}  // namespace

void floats(const FloatWeight& w, const void* x, Dtype dtype, int64_t rows, const Output& out,
            int threads, bool in_order) {
    if (!in_order && float_matrices(w, x, dtype, rows, out, threads)) return;
    int64_t k = larger(w.grid.columns, 1), fit = larger(kBytes / (k * 4) / 32, 1) * 32;
    int64_t most = smaller(rows, smaller(fit, chosen(Choice::panel_rows)));
    int64_t strip = most <= kDots && !in_order ? 1 : most <= kFloats ? kFloats : 2 * kFloats;
    int64_t bytes = ceil_div(most, strip) * strip * k * sizeof(float);
    float* transposed = reinterpret_cast<float*>(linear_scratch().of(bytes));
    for (int64_t first = 0; first < rows; first += most) {
        int64_t count = smaller(most, rows - first);
        run_rows({.w = &w, .x = x, .dtype = dtype, .out = out, .first = first, .rows = count,
                  .strip = strip, .strips = ceil_div(count, strip), .transposed = transposed},
                 threads);
    }
}

}  // namespace blockscale::BLOCKSCALE_ISA
