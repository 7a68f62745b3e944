// SPDX-License-Identifier: BSD-3-Clause
// Scaled dot product attention of float32, a block of query rows at a time. The rows of a block are the
// lanes: products with a key are sums over broadcast numbers, and softmax runs down the keys without
// sums across lanes. Only the query is laid out anew.
#include "../../linear.h"
#include "../linear/activations.h"
#include "rows.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kAcross = 4;  // vectors of query rows: with kDown keys 24 sums, and 4 vectors of the query
constexpr int kDown = 6;
constexpr int kOut = 8;     // rows of the result by two vectors of its width
#else
constexpr int kAcross = 2;
constexpr int kDown = 5;
constexpr int kOut = 5;
#endif
constexpr int64_t kBlock = kAcross * kFloats;

// One head of one batch.
struct Head {
    const float *query, *key, *value, *mask;
};

Head head_of(const Attention& a, int64_t batch, int64_t head) {
    auto at = [&](const float* x, const int64_t* strides, int64_t h) {
        return x ? x + batch * strides[0] + h * strides[1] : nullptr;
    };
    return {at(a.query, a.query_strides, head), at(a.key, a.key_strides, head / a.shared),
            at(a.value, a.value_strides, head / a.shared), at(a.mask, a.mask_strides, head)};
}

// Rows [first, first + count) of the query times the scale, as columns: [depth, kBlock].
void lay_out(const Attention& a, const float* query, int64_t first, int64_t count, float* columns) {
    int64_t stride = a.query_strides[2];
    const float* from = query + first * stride;
    for (int64_t k = 0; k < a.depth; ++k) {
        float* column = columns + k * kBlock;
        for (int64_t r = 0; r < count; ++r) column[r] = from[r * stride + k] * a.scale;
        for (int64_t r = count; r < kBlock; ++r) column[r] = 0.0f;
    }
}

// Products of the query's columns with N keys -> N rows of scores [kBlock].
template <int N>
inline void score(const float* columns, const float* key, int64_t stride, int64_t depth,
                  float* scores) {
    Vector sums[N][kAcross] = {};
    for (int64_t k = 0; k < depth; ++k) {
        Vector lanes[kAcross];
        for (int j = 0; j < kAcross; ++j) lanes[j] = load(columns + k * kBlock + j * kFloats);
        for (int i = 0; i < N; ++i) {
            Vector one = all(key[i * stride + k]);
            for (int j = 0; j < kAcross; ++j) sums[i][j] = multiply_add(lanes[j], one, sums[i][j]);
        }
    }
    for (int i = 0; i < N; ++i)
        for (int j = 0; j < kAcross; ++j) store(scores + i * kBlock + j * kFloats, sums[i][j]);
}

void score_keys(const Attention& a, const float* columns, const float* key, int64_t keys,
                float* scores) {
    int64_t stride = a.key_strides[2], i = 0;
    for (; i + kDown <= keys; i += kDown)
        score<kDown>(columns, key + i * stride, stride, a.depth, scores + i * kBlock);
    for (; i < keys; ++i) score<1>(columns, key + i * stride, stride, a.depth, scores + i * kBlock);
}

void add_mask(const Attention& a, const float* mask, int64_t first, int64_t count, int64_t keys,
              float* scores) {
    const int64_t *strides = a.mask_strides, down = strides[2], across = strides[3];
    for (int64_t i = 0; mask && i < keys; ++i) {
        const float* from = mask + first * down + i * across;
        float* row = scores + i * kBlock;
        if (down == 0) {
            for (int64_t r = 0; r < kBlock; ++r) row[r] += from[0];
        } else {
            for (int64_t r = 0; r < count; ++r) row[r] += from[r * down];
        }
    }
    for (int64_t i = first + 1; a.causal && i < keys; ++i)  // key i is unseen by rows before i
        for (int64_t r = 0; r < smaller(i - first, kBlock); ++r)
            scores[i * kBlock + r] = -__builtin_inff();
}

// Scores [keys, kBlock] -> exp of how far they are below their column's largest; 1 / sums of those, 0
// where all keys are masked, as torch has it.
void soften(float* scores, int64_t keys, float* inverses) {
    for (int j = 0; j < kAcross; ++j) {
        float* column = scores + j * kFloats;
        Vector most = load(column), sum = {};
        for (int64_t i = 1; i < keys; ++i) {
            Vector s = load(column + i * kBlock);
            most = s > most ? s : most;
        }
        most = most == all(-__builtin_inff()) ? Vector{} : most;
        for (int64_t i = 0; i < keys; ++i) {
            Vector power = exponential(load(column + i * kBlock) - most);
            sum += power;
            store(column + i * kBlock, power);
        }
        store(inverses + j * kFloats, sum == Vector{} ? Vector{} : all(1.0f) / sum);
    }
}

// N rows of the result, W vectors of its width from a column on.
template <int N, int W>
inline void sum_values(const float* powers, const float* value, int64_t stride, int64_t keys,
                       const float* inverses, float* y, int64_t width) {
    Vector sums[N][W] = {};
    for (int64_t i = 0; i < keys; ++i) {
        Vector v[W];
        for (int j = 0; j < W; ++j) v[j] = load(value + i * stride + j * kFloats);
        for (int r = 0; r < N; ++r) {
            Vector one = all(powers[i * kBlock + r]);
            for (int j = 0; j < W; ++j) sums[r][j] = multiply_add(v[j], one, sums[r][j]);
        }
    }
    for (int r = 0; r < N; ++r)
        for (int j = 0; j < W; ++j) store(y + r * width + j * kFloats, sums[r][j] * all(inverses[r]));
}

template <int W>
void sum_rows_of(const Attention& a, const float* powers, const float* value, int64_t count,
                 int64_t keys, const float* inverses, int64_t column, float* y) {
    int64_t stride = a.value_strides[2], r = 0;
    const float* from = value + column;
    for (; r + kOut <= count; r += kOut)
        sum_values<kOut, W>(powers + r, from, stride, keys, inverses + r, y + r * a.width + column,
                            a.width);
    for (; r < count; ++r)
        sum_values<1, W>(powers + r, from, stride, keys, inverses + r, y + r * a.width + column,
                         a.width);
}

// Rows [first, first + count) of a head -> y [count, width].
void run_block(const Attention& a, const Head& head, int64_t first, int64_t count, float* columns,
               float* scores, float* y) {
    alignas(64) float inverses[kBlock];
    int64_t keys = a.causal ? smaller(a.keys, first + count) : a.keys;
    lay_out(a, head.query, first, count, columns);
    score_keys(a, columns, head.key, keys, scores);
    add_mask(a, head.mask, first, count, keys, scores);
    soften(scores, keys, inverses);
    int64_t column = 0;
    for (; column + 2 * kFloats <= a.width; column += 2 * kFloats)
        sum_rows_of<2>(a, scores, head.value, count, keys, inverses, column, y);
    for (; column < a.width; column += kFloats)
        sum_rows_of<1>(a, scores, head.value, count, keys, inverses, column, y);
}

}  // namespace

void fused_attention(const Attention& a, const Result& to, int threads) {
    int64_t blocks = ceil_div(a.rows, kBlock), heads = a.batch * a.heads;
    bool pays = heads * a.rows * a.keys * a.depth >= 16 * chosen(Choice::threaded_elements);
    for_units(heads * blocks, threads, pays, [&](int64_t unit) {
        int64_t index = unit / blocks, first = unit % blocks * kBlock;
        int64_t count = smaller(kBlock, a.rows - first), row = index * a.rows + first;
        Array<float> columns(a.depth * kBlock), scores(a.keys * kBlock);
        Array<float> values(to.values ? 1 : count * a.width);
        float* y = to.values ? to.values + row * a.width : values.get();
        run_block(a, head_of(a, index / a.heads, index % a.heads), first, count, columns, scores, y);
        write_codes(to, a.width, row, count, y);
    });
}

}  // namespace blockscale::BLOCKSCALE_ISA
