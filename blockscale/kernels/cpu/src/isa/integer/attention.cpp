// SPDX-License-Identifier: BSD-3-Clause
// Attention of codes: blockscale/ops/integer/softmax.py, a block of query rows at a time. The rows are the
// lanes, as in isa/fused/attention.cpp; products are of pairs of 16-bit numbers, summed in int32.
#include "../simd/array.h"
#include "../simd/table.h"
#include "ending.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kRows = 32;       // of a block
constexpr int32_t kHidden = -(1 << 30);  // the score of a key that is not seen: below any sum

// A number that the compiler knows.
template <int N>
struct Known {
    static constexpr int value = N;
};

// One head of one batch.
struct Head {
    const char *query, *key, *value;
    const uint8_t* seen;
};

Head head_of(const IntegerAttention& a, int64_t batch, int64_t head) {
    auto at = [&](const void* x, const int64_t* strides, int64_t h) {
        return static_cast<const char*>(x) + batch * strides[0] + h * strides[1];
    };
    return {at(a.query.data, a.query_strides, head), at(a.key.data, a.key_strides, head / a.shared),
            at(a.value.data, a.value_strides, head / a.shared),
            a.seen ? reinterpret_cast<const uint8_t*>(at(a.seen, a.seen_strides, head)) : nullptr};
}

inline int16_t code_at(const Integers& x, const char* row, int64_t i) {
    int32_t code = x.type == Whole::i8 ? static_cast<int8_t>(row[i]) : static_cast<uint8_t>(row[i]);
    return static_cast<int16_t>(code - x.zero);
}

// The query's rows as pairs of columns: [depth / 2][kRows][2].
void lay_out(const IntegerAttention& a, const char* query, int64_t first, int64_t count, int64_t pairs,
             int16_t* to) {
    memset(to, 0, pairs * kRows * 4);
    for (int64_t r = 0; r < count; ++r) {
        const char* row = query + (first + r) * a.query_strides[2];
        for (int64_t k = 0; k < a.depth; ++k)
            to[(k / 2 * kRows + r) * 2 + k % 2] = code_at(a.query, row, k);
    }
}

// Keys as rows of pairs [keys][depth / 2][2]; values as pairs of keys [keys / 2][width][2].
void lay_out_keys(const IntegerAttention& a, const Head& head, int64_t pairs, int16_t* keys,
                  int16_t* values) {
    for (int64_t i = 0; i < a.keys; ++i) {
        const char* row = head.key + i * a.key_strides[2];
        for (int64_t k = 0; k < a.depth; ++k) keys[i * pairs * 2 + k] = code_at(a.key, row, k);
        if (a.depth % 2) keys[i * pairs * 2 + a.depth] = 0;
        const char* from = head.value + i * a.value_strides[2];
        for (int64_t w = 0; w < a.width; ++w)
            values[(i / 2 * a.width + w) * 2 + i % 2] = code_at(a.value, from, w);
    }
    if (a.keys % 2)
        for (int64_t w = 0; w < a.width; ++w) values[(a.keys / 2 * a.width + w) * 2 + 1] = 0;
}

inline int32_t pair_at(const int16_t* at) {
    int32_t both;
    copy<4>(&both, at);
    return both;
}

#if defined(__AVX512BW__)
inline __m512i add_products(__m512i sum, __m512i a, __m512i b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}

// N keys times the block's rows.
template <int N>
inline void score(const int16_t* query, const int16_t* keys, int64_t pairs, int32_t* scores) {
    __m512i sums[N][2];
    for (auto& each : sums) each[0] = each[1] = _mm512_setzero_si512();
    for (int64_t k = 0; k < pairs; ++k) {
        __m512i low = _mm512_loadu_si512(query + k * kRows * 2);
        __m512i high = _mm512_loadu_si512(query + k * kRows * 2 + 32);
        for (int i = 0; i < N; ++i) {
            __m512i one = _mm512_set1_epi32(pair_at(keys + (i * pairs + k) * 2));
            sums[i][0] = add_products(sums[i][0], low, one);
            sums[i][1] = add_products(sums[i][1], high, one);
        }
    }
    for (int i = 0; i < N; ++i) {
        _mm512_storeu_si512(scores + i * kRows, sums[i][0]);
        _mm512_storeu_si512(scores + i * kRows + 16, sums[i][1]);
    }
}

// N rows of the result, W vectors of its width.
template <int N, int W>
inline void weigh(const int16_t* shares, const int16_t* values, int64_t pairs, int64_t width,
                  int32_t* y) {
    __m512i sums[N][W];
    for (auto& row : sums)
        for (auto& each : row) each = _mm512_setzero_si512();
    for (int64_t i = 0; i < pairs; ++i) {
        __m512i v[W];
        for (int j = 0; j < W; ++j) v[j] = _mm512_loadu_si512(values + (i * width + j * 16) * 2);
        for (int r = 0; r < N; ++r) {
            __m512i one = _mm512_set1_epi32(pair_at(shares + (i * kRows + r) * 2));
            for (int j = 0; j < W; ++j) sums[r][j] = add_products(sums[r][j], v[j], one);
        }
    }
    for (int r = 0; r < N; ++r)
        for (int j = 0; j < W; ++j) _mm512_storeu_si512(y + r * width + j * 16, sums[r][j]);
}

// How far 16 scores are below their column's largest -> their powers.
inline __m512i powers(__m512i below, __m512i limit, __m512i factor, __m128i right,
                      const uint16_t* table) {
    below = _mm512_min_epu32(below, limit);
    __m512i even = _mm512_srl_epi64(_mm512_mul_epu32(below, factor), right);
    __m512i odd = _mm512_srl_epi64(_mm512_mul_epu32(_mm512_srli_epi64(below, 32), factor), right);
    __m512i exponent = _mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
    __m512i place = _mm512_and_si512(exponent, _mm512_set1_epi32(255));
    __m512i power = look_up_words(table, 8, place);  // of the upper words: table[0], dropped here
    power = _mm512_and_si512(power, _mm512_set1_epi32(0xFFFF));
    return _mm512_srlv_epi32(power, _mm512_srli_epi32(exponent, 8));
}
#endif

void score_keys(const int16_t* query, const int16_t* keys, int64_t pairs, int64_t count,
                int32_t* scores) {
    int64_t i = 0;
#if defined(__AVX512BW__)
    for (; i + 8 <= count; i += 8)
        score<8>(query, keys + i * pairs * 2, pairs, scores + i * kRows);
    for (; i < count; ++i) score<1>(query, keys + i * pairs * 2, pairs, scores + i * kRows);
#else
    for (; i < count; ++i) {
        int32_t* sums = scores + i * kRows;
        for (int64_t r = 0; r < kRows; ++r) sums[r] = 0;
        for (int64_t k = 0; k < pairs; ++k) {
            const int16_t *q = query + k * kRows * 2, *one = keys + (i * pairs + k) * 2;
            for (int64_t r = 0; r < kRows; ++r)
                sums[r] += static_cast<int32_t>(q[2 * r]) * one[0] +
                           static_cast<int32_t>(q[2 * r + 1]) * one[1];
        }
    }
#endif
}

// The first of the keys from `i` on that a row of the mask does not see, or `keys`.
inline int64_t next_hidden(const IntegerAttention& a, const uint8_t* row, int64_t i, int64_t keys) {
    int64_t step = a.seen_strides[3];
    if (step == 1 && i < keys) {
        const void* at = memchr(row + i, 0, keys - i);
        return at ? static_cast<const uint8_t*>(at) - row : keys;
    }
    while (i < keys && row[i * step]) ++i;
    return i;
}

void hide(const IntegerAttention& a, const Head& head, int64_t first, int64_t count, int64_t keys,
          int32_t* scores) {
    for (int64_t r = 0; head.seen && r < count; ++r) {
        const uint8_t* row = head.seen + (first + r) * a.seen_strides[2];
        bool all = a.seen_strides[2] == 0;  // every row sees the same keys
        for (int64_t i = next_hidden(a, row, 0, keys); i < keys; i = next_hidden(a, row, i + 1, keys)) {
            int32_t* to = scores + i * kRows;
            for (int64_t other = all ? 0 : r; other < (all ? kRows : r + 1); ++other) to[other] = kHidden;
        }
        if (all) break;
    }
    for (int64_t i = first + 1; a.causal && i < keys; ++i)  // key i is unseen by rows before i
        for (int64_t r = 0; r < smaller(i - first, kRows); ++r) scores[i * kRows + r] = kHidden;
}

// Scores [keys][kRows] -> shares in units of 2^-8 as pairs of keys [keys / 2][kRows][2]. `scores` is used up.
void soften(const IntegerAttention& a, const uint16_t* table, int64_t keys, int32_t* scores,
            int16_t* shares) {
    // from here on a power is 0: 16 whole exponents
    int64_t far = ((int64_t(16) << 8) << a.right) / a.factor + 1;
    int32_t limit = static_cast<int32_t>(smaller(far, int64_t(1) << 30));
    for (int64_t c = 0; c < kRows; c += 16) {
#if defined(__AVX512BW__)
        int32_t* column = scores + c;
        __m512i most = _mm512_set1_epi32(kHidden), total = _mm512_setzero_si512();
        for (int64_t i = 0; i < keys; ++i)
            most = _mm512_max_epi32(most, _mm512_loadu_si512(column + i * kRows));
        __mmask16 any = _mm512_cmpgt_epi32_mask(most, _mm512_set1_epi32(kHidden));
        __m512i factor = _mm512_set1_epi32(a.factor), top = _mm512_set1_epi32(limit);
        __m128i right = _mm_cvtsi32_si128(a.right);
        for (int64_t i = 0; i < keys; ++i) {
            __m512i below = _mm512_sub_epi32(most, _mm512_loadu_si512(column + i * kRows));
            __m512i power = _mm512_maskz_mov_epi32(any, powers(below, top, factor, right, table));
            total = _mm512_add_epi32(total, power);
            _mm512_storeu_si512(column + i * kRows, power);
        }
        alignas(64) uint32_t sums[16], inverses[16];
        _mm512_store_si512(sums, total);
        for (int r = 0; r < 16; ++r) inverses[r] = (uint32_t(1) << 31) / larger(sums[r], 1u);
        __m512i inverse = _mm512_load_si512(inverses), half = _mm512_set1_epi32(1 << 22);
        for (int64_t i = 0; i < keys; ++i) {
            __m512i power = _mm512_loadu_si512(column + i * kRows);
            __m512i share = _mm512_add_epi32(_mm512_mullo_epi32(power, inverse), half);
            share = _mm512_min_epu32(_mm512_srli_epi32(share, 23), _mm512_set1_epi32(255));
            int16_t* to = shares + (i / 2 * kRows + c) * 2;
            if (i % 2) share = _mm512_or_si512(_mm512_loadu_si512(to), _mm512_slli_epi32(share, 16));
            _mm512_storeu_si512(to, share);
        }
#else
        for (int64_t r = c; r < c + 16; ++r) {
            int32_t most = kHidden;
            for (int64_t i = 0; i < keys; ++i) most = larger(most, scores[i * kRows + r]);
            uint32_t total = 0;
            for (int64_t i = 0; i < keys; ++i) {
                uint64_t below = smaller(static_cast<uint32_t>(most) -
                                             static_cast<uint32_t>(scores[i * kRows + r]),
                                         static_cast<uint32_t>(limit));
                uint64_t exponent = below * a.factor >> a.right;
                uint32_t power = most == kHidden ? 0 : uint32_t(table[exponent & 255]) >> (exponent >> 8);
                scores[i * kRows + r] = power;
                total += power;
            }
            uint32_t inverse = (uint32_t(1) << 31) / larger(total, 1u);
            for (int64_t i = 0; i < keys; ++i) {
                uint32_t share = (scores[i * kRows + r] * inverse + (1 << 22)) >> 23;
                shares[(i / 2 * kRows + r) * 2 + i % 2] = smaller(share, 255u);
            }
        }
#endif
    }
    if (keys % 2)
        for (int64_t r = 0; r < kRows; ++r) shares[(keys / 2 * kRows + r) * 2 + 1] = 0;
}

void sum_values(const int16_t* shares, const int16_t* values, int64_t pairs, int64_t width,
                int64_t count, int32_t* y) {
    int64_t w = 0;
#if defined(__AVX512BW__)
    auto columns = [&](auto one, int64_t r, int64_t n) {
        constexpr int W = decltype(one)::value;
        for (; n >= 8; n -= 8, r += 8)
            weigh<8, W>(shares + r * 2, values + w * 2, pairs, width, y + r * width + w);
        for (; n; --n, ++r)
            weigh<1, W>(shares + r * 2, values + w * 2, pairs, width, y + r * width + w);
    };
    for (; w + 32 <= width; w += 32) columns(Known<2>{}, 0, count);
    for (; w + 16 <= width; w += 16) columns(Known<1>{}, 0, count);
#endif
    for (int64_t r = 0; r < count && w < width; ++r)
        for (int64_t j = w; j < width; ++j) {
            int32_t sum = 0;
            for (int64_t i = 0; i < pairs; ++i) {
                const int16_t *s = shares + (i * kRows + r) * 2, *v = values + (i * width + j) * 2;
                sum += static_cast<int32_t>(s[0]) * v[0] + static_cast<int32_t>(s[1]) * v[1];
            }
            y[r * width + j] = sum;
        }
}

}  // namespace

void integer_attention(const IntegerAttention& a, const Ending& to, int threads) {
    alignas(64) uint16_t table[256];
    for (int i = 0; i < 256; ++i) table[i] = static_cast<uint16_t>(a.table[i]);
    int64_t pairs = ceil_div(a.depth, 2), key_pairs = ceil_div(a.keys, 2), heads = a.batch * a.heads;
    bool pays = heads * a.rows * a.keys * a.depth >= 16 * chosen(Choice::threaded_elements);
    for_units(heads, threads, pays, [&](int64_t index) {
        Head head = head_of(a, index / a.heads, index % a.heads);
        Array<int16_t> query(pairs * kRows * 2), keys(a.keys * pairs * 2);
        Array<int16_t> values(key_pairs * a.width * 2), shares(key_pairs * kRows * 2);
        Array<int32_t> scores(a.keys * kRows), sums(kRows * a.width);
        lay_out_keys(a, head, pairs, keys.get(), values.get());
        for (int64_t first = 0; first < a.rows; first += kRows) {
            int64_t count = smaller(kRows, a.rows - first);
            lay_out(a, head.query, first, count, pairs, query.get());
            score_keys(query.get(), keys.get(), pairs, a.keys, scores.get());
            hide(a, head, first, count, a.keys, scores.get());
            soften(a, table, a.keys, scores.get(), shares.get());
            sum_values(shares.get(), values.get(), key_pairs, a.width, count, sums.get());
            end(to, sums.get(), (index * a.rows + first) * a.width, count * a.width);
        }
    });
}

}  // namespace blockscale::BLOCKSCALE_ISA
