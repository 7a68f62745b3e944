// SPDX-License-Identifier: BSD-3-Clause
// Attention of a few new tokens over keys and values in codes, and over recent ones in floats behind
// them. Keys are taken in parts of a fixed number, whatever the threads are: of each part the largest
// score, the sum of powers and the sums of values; parts meet at the end, from the first to the last.
// A few tokens are decoded at a time and stay in the first-level cache for all queries that share them.
#include "../../fused/fused.h"
#include "../../linear.h"
#include "../linear/activations.h"
#include "../primitives/rows.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kPart = 1024;   // keys whose softmax is one
constexpr int64_t kTokens = 32;   // that are decoded at a time
constexpr int kKeys = 8;          // keys by one vector of queries
constexpr int kFew = 4;           // queries up to which a sum runs along the features instead
constexpr int kSums = 8;          // queries by two vectors of values
constexpr int kAcross = 4;        // queries by two vectors of keys that lie feature by feature

float sum_of(Vector v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float sum = 0.0f;
    for (int i = 0; i < kFloats; ++i) sum += v[i];
    return sum;
#endif
}

// Rows of keys or values: a matrix of codes whose blocks are of one row each, then floats.
struct Decoder {
    const CachedRows& from;
    Grid grid;
    bool flat;  // rows are whole blocks and whole bytes: the codes are one row

    explicit Decoder(const CachedRows& rows) : from(rows), grid(rows.layout->grid) {
        flat = grid.columns % grid.block_columns == 0 && grid.columns * from.spec->element.bits % 8 == 0;
        if (flat) grid.columns *= grid.rows, grid.rows = 1;
    }

    // The steps of `count` rows of `each` blocks, from a row's first block on. As table_steps, which asks
    // for each block where its outer scale is: a row has one, most often.
    void row_steps(int64_t block, int64_t count, int64_t each, float* steps) const {
        const Spec& spec = *from.spec;
        if (spec.scale != ScaleKind::two_level)
            return table_steps(spec, *from.layout, from.scales, block, count * each, steps);
        decode(*spec.inner, static_cast<const uint8_t*>(from.scales.scale) + block, nullptr, count * each, steps);
        OuterIndex outer(from.layout->inner);
        for (int64_t r = 0; r < count; ++r) {
            int64_t first = block + r * each, last = first + each - 1;
            int64_t at = outer.single ? 0 : outer(first);
            bool one = outer.single || at == outer(last);
            float only = from.scales.outer[at], *row = steps + r * each;
            if (one) {
                for (int64_t i = 0; i < each; ++i) row[i] = product(only, row[i]);
            } else {
                for (int64_t i = 0; i < each; ++i) row[i] = product(from.scales.outer[outer(first + i)], row[i]);
            }
        }
    }

    // Rows [first, first + count) of the matrix -> values [count, columns].
    void decode_codes(int64_t first, int64_t count, float* values) const {
        const Spec& spec = *from.spec;
        int64_t size = from.layout->grid.columns, each = from.layout->grid.scale_columns();
        int64_t block = first * each, n = count * each;
        Array<float> steps(n), offsets(spec.offset == Stored::none ? 1 : n), zeros(spec.asym ? n : 1);
        row_steps(block, count, each, steps);
        if (spec.offset != Stored::none) load_offsets(spec, from.scales.offset, block, n, offsets);
        if (spec.asym) load_zero_points(spec, from.scales.zero_point, block, n, zeros);
        const float* moved = spec.offset == Stored::none ? nullptr : offsets.get() - block;
        const float* zero = spec.asym ? zeros.get() - block : nullptr;
        if (flat) {
            decode_rows(spec, grid, from.codes, steps.get() - block, zero, moved, 0, 1, first * size, count * size,
                        values, count * size);
        } else {
            decode_rows(spec, grid, from.codes, steps.get() - block, zero, moved, first, count, 0, size, values, size);
        }
    }
};

// One head of one batch: its queries as columns [depth, lanes] and as rows.
struct Queries {
    int64_t count, lanes;
    Array<float> room;
    const float *columns, *rows;

    Queries(const CachedAttention& a, int64_t head)
        : count(a.rows), lanes(ceil_div(a.rows, kFloats) * kFloats), room(a.depth * lanes), columns(room),
          rows(a.query + head * a.rows * a.depth) {
        for (int64_t k = 0; k < a.depth; ++k)
            for (int64_t r = 0; r < lanes; ++r) room[k * lanes + r] = r < count ? rows[r * a.depth + k] : 0.0f;
    }
};

template <int N>
inline void score(const Queries& q, int64_t lane, const float* keys, int64_t depth, float* scores) {
    Vector sums[N] = {};
    for (int64_t k = 0; k < depth; ++k) {
        Vector column = load(q.columns + k * q.lanes + lane);
        for (int i = 0; i < N; ++i) sums[i] = multiply_add(column, all(keys[i * depth + k]), sums[i]);
    }
    for (int i = 0; i < N; ++i) store(scores + i * q.lanes + lane, sums[i]);
}

// Products of all queries with `count` keys [count, depth] -> scores [count, lanes].
void score_keys(const Queries& q, const float* keys, int64_t count, int64_t depth, float* scores) {
    if (q.count <= kFew && depth % kFloats == 0) {
        for (int64_t i = 0; i < count; ++i)
            for (int64_t r = 0; r < q.count; ++r) {
                Vector sum = {};
                const float *key = keys + i * depth, *row = q.rows + r * depth;
                for (int64_t k = 0; k < depth; k += kFloats) sum = multiply_add(load(key + k), load(row + k), sum);
                scores[i * q.lanes + r] = sum_of(sum);
            }
        return;
    }
    for (int64_t lane = 0; lane < q.lanes; lane += kFloats) {
        int64_t i = 0;
        for (; i + kKeys <= count; i += kKeys)
            score<kKeys>(q, lane, keys + i * depth, depth, scores + i * q.lanes);
        for (; i < count; ++i) score<1>(q, lane, keys + i * depth, depth, scores + i * q.lanes);
    }
}

// N queries, from row `r` on, by W vectors of keys that lie feature by feature [depth, chunk].
template <int N, int W>
inline void score_across(const Queries& q, int64_t r, const float* keys, int64_t chunk, int64_t depth,
                         float* scores) {
    Vector sums[N][W] = {};
    for (int64_t k = 0; k < depth; ++k) {
        Vector key[W];
        for (int j = 0; j < W; ++j) key[j] = load(keys + k * chunk + j * kFloats);
        for (int n = 0; n < N; ++n) {
            Vector feature = all(q.columns[k * q.lanes + r + n]);
            for (int j = 0; j < W; ++j) sums[n][j] = multiply_add(feature, key[j], sums[n][j]);
        }
    }
    for (int n = 0; n < N; ++n)
        for (int j = 0; j < W; ++j)
            for (int i = 0; i < kFloats; ++i) scores[(j * kFloats + i) * q.lanes + r + n] = sums[n][j][i];
}

template <int N>
inline void score_rows(const Queries& q, int64_t r, const float* keys, int64_t chunk, int64_t depth, float* scores) {
    int64_t i = 0;
    for (; i + 2 * kFloats <= chunk; i += 2 * kFloats)
        score_across<N, 2>(q, r, keys + i, chunk, depth, scores + i * q.lanes);
    for (; i + kFloats <= chunk; i += kFloats)
        score_across<N, 1>(q, r, keys + i, chunk, depth, scores + i * q.lanes);
    for (; i < chunk; ++i)
        for (int n = 0; n < N; ++n) {
            float sum = 0.0f;
            for (int64_t k = 0; k < depth; ++k) sum += q.columns[k * q.lanes + r + n] * keys[k * chunk + i];
            scores[i * q.lanes + r + n] = sum;
        }
}

// Products of all queries with a chunk of keys [depth, chunk] -> scores [chunk, lanes].
void score_chunk(const Queries& q, const float* keys, int64_t chunk, int64_t depth, float* scores) {
    int64_t r = 0;
    for (; r + kAcross <= q.count; r += kAcross) score_rows<kAcross>(q, r, keys, chunk, depth, scores);
    for (; r < q.count; ++r) score_rows<1>(q, r, keys, chunk, depth, scores);
}

// N queries by W vectors of values [count, width]: what powers [count, lanes] make of them, added to sums.
template <int N, int W>
inline void add_values(const float* powers, int64_t lanes, const float* values, int64_t count, int64_t width,
                       float* sums) {
    Vector total[N][W];
    for (int r = 0; r < N; ++r)
        for (int j = 0; j < W; ++j) total[r][j] = load(sums + r * width + j * kFloats);
    for (int64_t i = 0; i < count; ++i) {
        Vector v[W];
        for (int j = 0; j < W; ++j) v[j] = load(values + i * width + j * kFloats);
        for (int r = 0; r < N; ++r) {
            Vector power = all(powers[i * lanes + r]);
            for (int j = 0; j < W; ++j) total[r][j] = multiply_add(v[j], power, total[r][j]);
        }
    }
    for (int r = 0; r < N; ++r)
        for (int j = 0; j < W; ++j) store(sums + r * width + j * kFloats, total[r][j]);
}

template <int N>
inline void add_rows(const float* powers, int64_t lanes, const float* values, int64_t count, int64_t width,
                     float* sums) {
    int64_t c = 0;
    for (; c + 2 * kFloats <= width; c += 2 * kFloats)
        add_values<N, 2>(powers, lanes, values + c, count, width, sums + c);
    for (; c + kFloats <= width; c += kFloats)
        add_values<N, 1>(powers, lanes, values + c, count, width, sums + c);
    for (; c < width; ++c)
        for (int r = 0; r < N; ++r)
            for (int64_t i = 0; i < count; ++i) sums[r * width + c] += powers[i * lanes + r] * values[i * width + c];
}

void sum_values(const Queries& q, const float* powers, const float* values, int64_t count, int64_t width,
                float* sums) {
    int64_t r = 0;
    for (; r + kSums <= q.count; r += kSums)
        add_rows<kSums>(powers + r, q.lanes, values, count, width, sums + r * width);
    for (; r < q.count; ++r) add_rows<1>(powers + r, q.lanes, values, count, width, sums + r * width);
}

// The largest score of each query, and the sum of powers.
struct Softmax {
    float *most, *sum;
};

// Scores [count, lanes] times the scale and with the mask, of keys from `first` on -> powers below the
// largest of each query.
void soften(const CachedAttention& a, int64_t head, const Queries& q, int64_t first, int64_t count, float* scores,
            Softmax to) {
    int64_t seen = a.tokens + a.recent - a.queries + 1;  // keys that the first new token sees
    for (int64_t i = 0; i < count; ++i) {
        float* row = scores + i * q.lanes;
        for (int64_t r = 0; r < q.lanes; r += kFloats) store(row + r, load(row + r) * all(a.scale));
        if (a.mask) {
            const int64_t* by = a.mask_strides;
            const float* from = a.mask + head / a.heads * by[0] + head % a.heads * by[1] + (first + i) * by[3];
            for (int64_t r = 0; r < q.count; ++r) row[r] += from[r * by[2]];
        } else if (first + i >= seen) {
            for (int64_t r = 0; r < q.count; ++r)
                if (r % a.queries < first + i - seen + 1) row[r] = -__builtin_inff();
        }
    }
    for (int64_t lane = 0; lane < q.lanes; lane += kFloats) {
        Vector most = load(scores + lane), sum = {};
        for (int64_t i = 1; i < count; ++i) {
            Vector s = load(scores + i * q.lanes + lane);
            most = s > most ? s : most;
        }
        most = most == all(-__builtin_inff()) ? Vector{} : most;
        for (int64_t i = 0; i < count; ++i) {
            Vector power = exponential(load(scores + i * q.lanes + lane) - most);
            sum += power;
            store(scores + i * q.lanes + lane, power);
        }
        // where nothing is seen there is nothing that the part could add
        store(to.most + lane, sum == Vector{} ? all(-__builtin_inff()) : most);
        store(to.sum + lane, sum);
    }
}

// Scores [count, lanes] of keys [first, first + count) of one head, all in codes or all floats.
void score_part(const CachedAttention& a, int64_t head, const Queries& q, int64_t first, int64_t count,
                float* scores) {
    Decoder keys(a.keys);
    bool coded = first < a.tokens;
    int64_t each = coded && a.chunk ? a.chunk : kTokens;
    Array<float> tile(a.depth * each);
    for (int64_t i = 0; i < count; i += each) {
        int64_t n = smaller(each, count - i);
        if (coded && a.chunk) {
            keys.decode_codes((head * a.tokens + first + i) / a.chunk * a.depth, a.depth, tile);
            score_chunk(q, tile, n, a.depth, scores + i * q.lanes);
            continue;
        }
        const float* from = a.recent_keys + (head * a.recent + first - a.tokens + i) * a.depth;
        if (coded) keys.decode_codes(head * a.tokens + first + i, n, tile);
        score_keys(q, coded ? tile.get() : from, n, a.depth, scores + i * q.lanes);
    }
    if (q.count <= kFew || (coded && a.chunk))  // lanes that no query has
        for (int64_t i = 0; i < count; ++i)
            for (int64_t r = q.count; r < q.lanes; ++r) scores[i * q.lanes + r] = 0.0f;
}

// The part of these keys.
void run_part(const CachedAttention& a, int64_t head, int64_t first, int64_t count, Softmax to, float* sums) {
    Queries q(a, head);
    bool coded = first < a.tokens;
    Decoder values(a.values);
    int64_t row = head * a.tokens + first, recent = head * a.recent + first - a.tokens;
    Array<float> scores(count * q.lanes), tile(kTokens * a.width);
    score_part(a, head, q, first, count, scores);
    soften(a, head, q, first, count, scores, to);
    for (int64_t i = 0; i < count; i += kTokens) {
        int64_t n = smaller(kTokens, count - i);
        const float* from = tile;
        if (coded) values.decode_codes(row + i, n, tile);
        else from = a.recent_values + (recent + i) * a.width;
        sum_values(q, scores + i * q.lanes, from, n, a.width, sums);
    }
}

// Parts of one query, `apart` numbers from one to the next, -> y [width]. sink: a score of no value.
void joined(const float* most, const float* sum, int64_t lanes, const float* sums, int64_t apart, int64_t parts,
            int64_t width, const float* sink, float* y) {
    float top = sink ? *sink : -__builtin_inff(), total = 0.0f;
    for (int64_t p = 0; p < parts; ++p) top = most[p * lanes] > top ? most[p * lanes] : top;
    for (int64_t c = 0; c < width; ++c) y[c] = 0.0f;
    if (sink && *sink != -__builtin_inff()) total = exponential(all(*sink - top))[0];
    for (int64_t p = 0; p < parts; ++p) {
        float below = most[p * lanes] - top;
        float by = most[p * lanes] == -__builtin_inff() ? 0.0f : exponential(all(below))[0];
        total += sum[p * lanes] * by;
        for (int64_t c = 0; c < width; ++c) y[c] += sums[p * apart + c] * by;
    }
    float inverse = total == 0.0f ? 0.0f : 1.0f / total;  // 0 where all keys are masked, as torch has it
    for (int64_t c = 0; c < width; ++c) y[c] *= inverse;
}

}  // namespace

void fused_cached_attention(const CachedAttention& a, float* y, int threads) {
    int64_t heads = a.batch * a.heads, lanes = ceil_div(a.rows, kFloats) * kFloats;
    int64_t each = a.chunk ? larger(kPart / a.chunk, 1) * a.chunk : kPart;
    int64_t coded = ceil_div(a.tokens, each), parts = coded + ceil_div(a.recent, kPart);
    int64_t size = a.rows * a.width;
    Array<float> most(heads * parts * lanes), sum(heads * parts * lanes), sums(heads * parts * size);
    bool pays = heads * a.rows * (a.tokens + a.recent) * a.depth >= 16 * chosen(Choice::threaded_elements);
    for_units(heads * parts, threads, pays, [&](int64_t unit) {
        int64_t head = unit / parts, part = unit % parts;
        int64_t first = part < coded ? part * each : a.tokens + (part - coded) * kPart;
        int64_t end = part < coded ? a.tokens : a.tokens + a.recent;
        for (int64_t i = 0; i < size; ++i) sums[unit * size + i] = 0.0f;
        run_part(a, head, first, smaller(part < coded ? each : kPart, end - first), {most + unit * lanes, sum + unit * lanes},
                 sums + unit * size);
    });
    for_units(heads * a.rows, threads, false, [&](int64_t unit) {
        int64_t head = unit / a.rows, r = unit % a.rows, from = head * parts;
        int64_t query = (head % a.heads * a.rows + r) / a.queries;
        joined(most + from * lanes + r, sum + from * lanes + r, lanes, sums + from * size + r * a.width, size, parts,
               a.width, a.sinks ? a.sinks + query : nullptr, y + unit * a.width);
    });
}

}  // namespace blockscale::BLOCKSCALE_ISA
