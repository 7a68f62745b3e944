// SPDX-License-Identifier: BSD-3-Clause
// Linear layers of few rows of float x: as fast as the weight's codes come from memory. Codes are
// decoded in registers and multiplied by x; only the sum over a unit is multiplied by the step of its
// block ("late scaling"). Weights and rows whose sums could leave float32's range that way are called
// wild and left to float.cpp, the others tame.
#include "few.h"

#include "../../tuning.h"
#include "../primitives/decode.h"
#include "../simd/environment.h"
#include "../simd/floats.h"
#include "scratch.h"

namespace blockscale::BLOCKSCALE_ISA {

#if defined(__AVX512F__)
namespace {

constexpr int64_t kMost = 4;  // rows of x in one pass over the weight

struct Few {
    const FloatWeight* w;
    Decoding decoding;
    LaneBlocks blocks;
    float factor;      // of all values: the bias of a decoder, the outer scale
    const float* x;    // [unit][row][vector][16]
    int64_t units, row_bytes, row_blocks;
    const float* bias;
    float* y;          // [row][n]
};

// One unit of one output times M rows.
template <class D, Steps S, Shift H, int M>
inline void add_unit(const Few& p, const uint8_t* codes, int64_t block, const float* x,
                     __m512 (&sums)[M]) {
    __m512 values[D::kVectors];
    D::decode(p.decoding, codes, values);
    if constexpr (H == Shift::zeros) {
        __m512 zeros = unit_zeros(*p.w, p.blocks, block);
#pragma GCC unroll 8
        for (int j = 0; j < D::kVectors; ++j) values[j] = _mm512_sub_ps(values[j], zeros);
    }
    __m512 steps = unit_steps<S>(*p.w, p.blocks, block);
    if constexpr (H == Shift::offsets) {  // scaled at once: what cancels then is exact
        __m512 offsets = unit_offsets(*p.w, p.blocks, block);
#pragma GCC unroll 8
        for (int j = 0; j < D::kVectors; ++j) {
            if constexpr (D::kScaled)
                values[j] = _mm512_mul_ps(values[j], _mm512_set1_ps(p.decoding.factor));
            values[j] = _mm512_add_ps(_mm512_mul_ps(values[j], steps), offsets);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < M; ++r, x += D::kVectors * 16) {
        __m512 sum = _mm512_mul_ps(values[0], _mm512_load_ps(x));
#pragma GCC unroll 8
        for (int j = 1; j < D::kVectors; ++j)
            sum = _mm512_fmadd_ps(values[j], _mm512_load_ps(x + 16 * j), sum);
        sums[r] = H == Shift::offsets ? _mm512_add_ps(sum, sums[r])
                                      : _mm512_fmadd_ps(sum, steps, sums[r]);
    }
}

// Two outputs times M rows, so that x is loaded once for both.
template <class D, Steps S, Shift H, int M>
void run_pair(const Few& p, int64_t first, int64_t second) {
    constexpr int64_t kAhead = 1024;  // bytes, in each of two rows of codes
    const FloatWeight& w = *p.w;
    const uint8_t* codes[2] = {w.codes + first * p.row_bytes, w.codes + second * p.row_bytes};
    Position blocks[2] = {{p.blocks, first / w.grid.block_rows * p.row_blocks},
                          {p.blocks, second / w.grid.block_rows * p.row_blocks}};
    __m512 sums[2][M];
    for (int i = 0; i < 2; ++i)
        for (int r = 0; r < M; ++r) sums[i][r] = _mm512_setzero_ps();
    const float* x = p.x;
    int64_t whole = p.row_bytes / D::kBytes;
    for (int64_t unit = 0; unit < whole; ++unit, x += M * D::kVectors * 16) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            _mm_prefetch(reinterpret_cast<const char*>(codes[i] + kAhead), _MM_HINT_T0);
            add_unit<D, S, H, M>(p, codes[i], blocks[i].at, x, sums[i]);
            codes[i] += D::kBytes;
            blocks[i].advance(p.blocks);
        }
    }
    for (int i = 0; i < 2 && whole < p.units; ++i) {
        uint8_t tail[D::kBytes] = {};
        memcpy(tail, codes[i], p.row_bytes - whole * D::kBytes);
        add_unit<D, S, H, M>(p, tail, blocks[i].at, x, sums[i]);
    }
    const int64_t outputs[2] = {first, second};
    for (int i = 0; i < 2; ++i)
        for (int r = 0; r < M; ++r) {
            float bias = p.bias ? p.bias[outputs[i]] : 0.0f;
            p.y[r * w.grid.rows + outputs[i]] =
                _mm512_reduce_add_ps(sums[i][r]) * p.factor + bias;
        }
}

using RunPair = void (*)(const Few&, int64_t, int64_t);

template <class D, Steps S, Shift H>
RunPair pair_of_rows(int64_t rows) {
    static constexpr RunPair table[] = {run_pair<D, S, H, 1>, run_pair<D, S, H, 2>,
                                        run_pair<D, S, H, 3>, run_pair<D, S, H, 4>};
    return table[rows - 1];
}

template <class D>
RunPair pair_of(const FloatWeight& w, Steps steps, int64_t rows) {
    if (w.zero_points) return pair_of_rows<D, Steps::floats, Shift::zeros>(rows);
    if (w.offsets) return pair_of_rows<D, Steps::floats, Shift::offsets>(rows);
    if (steps == Steps::e8m0) return pair_of_rows<D, Steps::e8m0, Shift::none>(rows);
    if constexpr (D::kUnit == 128)
        if (steps == Steps::minifloats) return pair_of_rows<D, Steps::minifloats, Shift::none>(rows);
    return pair_of_rows<D, Steps::floats, Shift::none>(rows);
}

// Everything about one decoder that does not depend on x.
struct Kind {
    int unit, vectors, neighbours;
    int (*lane)(int);
    int (*vector)(int);
    RunPair (*pair)(const FloatWeight&, Steps, int64_t rows);
};

template <class D>
constexpr Kind kind_of() {
    return {D::kUnit, D::kVectors, D::kNeighbours, D::lane, D::vector, pair_of<D>};
}

// Whether the values of a table may be multiplied before they are scaled: see tame.
bool moderate(const Codebook& book) {
    bool usable = true;
    for (int i = 0; i < Codebook::kMost; ++i) {
        float size = from_bits(to_bits(book.ranked[i]) & INT32_MAX);
        usable &= size == 0.0f || (size >= 0x1p-20f && size <= 0x1p20f);
    }
    return usable;
}

bool kind(const Element& e, Kind* found) {
    if (e.book && !moderate(*e.book)) return false;
    if (e.bits == 4) {
        *found = kind_of<Nibbles>();
        return true;
    }
    if (e.bits != 8) return false;
    switch (e.family) {
        case Family::integer:
            *found = e.is_signed ? kind_of<Bytes<true>>() : kind_of<Bytes<false>>();
            return true;
        case Family::minifloat:
            *found = kind_of<Minifloats>();
            return e.mantissa_bits >= 2;
        case Family::codebook:
            *found = kind_of<Places>();
            return true;
        case Family::binary: return false;
    }
    __builtin_unreachable();
}

Decoding decoding_of(const Spec& spec) {
    const Element& e = spec.element;
    alignas(64) float table[16];
    alignas(64) uint8_t codes[16];
    for (int i = 0; i < 16; ++i) codes[i] = i;
    Decoding d{};
    d.factor = 1.0f;
    if (e.bits == 4) {
        decode(spec, codes, nullptr, 16, table);
        d.table = _mm512_load_ps(table);
        return d;
    }
    switch (e.family) {
        case Family::minifloat:
            d.shift = 5 - (7 - e.mantissa_bits);
            d.mask = _mm512_set1_epi16(static_cast<int16_t>(0x8000 | (0x7F00 >> d.shift)));
            d.factor = from_bits((127 + 15 - e.bias) << 23);
            break;
        case Family::codebook: d.values = e.book->values; break;
        case Family::integer:
        case Family::binary: break;  // codes are converted, nothing else
    }
    return d;
}

Steps steps_of(const FloatWeight& w, const LaneBlocks& b) {
    if (!w.scale_codes || w.zero_points || w.offsets) return Steps::floats;
    switch (w.spec->scale) {
        case ScaleKind::e8m0: return Steps::e8m0;
        case ScaleKind::two_level: return b.per_unit == 8 ? Steps::minifloats : Steps::floats;
        case ScaleKind::fp32:
        case ScaleKind::fp16:
        case ScaleKind::bf16:
        case ScaleKind::pow2: return Steps::floats;
    }
    __builtin_unreachable();
}

// False if blocks fit neither lanes nor units.
bool blocks_of(const Kind& k, const FloatWeight& w, LaneBlocks* b) {
    int64_t block = w.grid.block_columns;
    *b = LaneBlocks{};
    if (block >= w.grid.columns || block % k.unit == 0) {
        b->units = larger(ceil_div(block, k.unit), 1);
        return true;
    }
    if (k.unit % block || block % k.neighbours || k.unit / block > 8) return false;
    b->per_unit = k.unit / block;
    alignas(64) int32_t index[16];
    alignas(64) uint8_t bytes[64];
    bool whole_words = w.spec->scale == ScaleKind::e8m0;  // else halves, with the byte on top
    memset(bytes, 0x80, sizeof(bytes));
    for (int lane = 0; lane < 16; ++lane) {
        index[lane] = lane * k.neighbours / block;
        bytes[whole_words ? 4 * lane : 2 * lane + 1] = index[lane];
    }
    b->index = _mm512_load_si512(index);
    b->bytes = _mm512_load_si512(bytes);
    return true;
}

// A sum of products x * code is scaled late; steps in this range and x in that of `usable` keep it
// among the normal float32 numbers.
bool tame(float step) {
    float size = from_bits(to_bits(step) & INT32_MAX);
    return size == 0.0f || (size >= 0x1p-60f && size <= 0x1p60f);
}

// The bits of a code that are set in no code of the value 0.
uint8_t not_in_zero(const Element& e) {
    switch (e.family) {
        case Family::integer: return 0xFF;
        case Family::minifloat: return ~(1 << (e.bits - 1));  // all but the sign
        case Family::binary:
        case Family::codebook: break;
    }
    return 0;
}

// Whether all codes of a block mean 0, whatever its finite step.
bool block_is_zero(const FloatWeight& w, int64_t row, int64_t block) {
    const Element& e = w.spec->element;
    uint8_t others = not_in_zero(e);
    // Zero points make another code mean 0, which is seldom worth finding out; tables may have one
    // anywhere, and binary has none.
    if (w.zero_points || !others) return false;
    int64_t first = block * w.grid.block_columns;
    int64_t last = smaller(first + w.grid.block_columns, w.grid.columns);
    const uint8_t* codes = w.codes + row * w.spec->row_bytes(w.grid.columns);
    for (int64_t i = first; i < last; ++i) {
        uint8_t code = e.bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
        if (code & others) return false;
    }
    return true;
}

bool row_is_tame(const FloatWeight& w, int64_t row) {
    const Element& e = w.spec->element;
    int64_t blocks = w.grid.scale_columns(), at = row / w.grid.block_rows * blocks;
    for (int64_t block = 0; block < blocks; ++block) {
        float step = w.steps[at + block];
        bool finite = (to_bits(step) & INT32_MAX) < kInfinity;
        if (!w.offsets && !tame(step) && !(finite && block_is_zero(w, row, block))) return false;
    }
    if (e.bits != 8) return true;
    const uint8_t* codes = w.codes + row * w.grid.columns;
    int reserved = 0;
    switch (e.family) {
        case Family::minifloat:
            for (int64_t i = 0; i < w.grid.columns; ++i) reserved |= (codes[i] & 127) > e.max_code;
            break;
        case Family::integer:
        case Family::codebook:
        case Family::binary: break;
    }
    return !reserved;
}

// Whether late scaling is safe for this row: finite, and neither huge nor tiny as a whole.
bool usable(const float* x, int64_t n) {
    int32_t most = 0;
    for (int64_t i = 0; i < n; ++i) {
        int32_t size = to_bits(x[i]) & INT32_MAX;
        most = size > most ? size : most;
    }
    return most == 0 || (most >= to_bits(0x1p-60f) && most <= to_bits(0x1p50f));
}

// x [k] of one row into the places that the decoder's vectors have.
void arrange(const Kind& k, const float* x, int64_t n, int64_t stride, float* to) {
    int32_t place[128];
    for (int i = 0; i < k.unit; ++i) place[i] = k.vector(i) * 16 + k.lane(i);
    for (int64_t first = 0; first < n; first += k.unit, to += stride) {
        int64_t count = smaller(k.unit, n - first);
        for (int64_t i = 0; i < count; ++i) to[place[i]] = x[first + i];
    }
}

void run_all(const Few& p, RunPair run, int threads) {
    int64_t n = p.w->grid.rows;
#pragma omp parallel for num_threads(startable(threads)) if (threads > 1) schedule(dynamic, 32)
    for (int64_t output = 0; output < n; output += 2)
        run(p, output, smaller(output + 1, n - 1));
}

}  // namespace

int64_t few(const FloatWeight& w, int threads) {
    Kind k;
    LaneBlocks blocks;
    if (!kind(w.spec->element, &k) || !blocks_of(k, w, &blocks)) return 0;
    int wild = 0;
#pragma omp parallel for num_threads(startable(threads)) reduction(| : wild)
    for (int64_t row = 0; row < w.grid.rows; ++row) wild |= !row_is_tame(w, row);
    const Element& e = w.spec->element;
    if (wild) return 0;
    return chosen(e.bits == 4 ? Choice::few_of_nibbles_float
                  : e.book    ? Choice::few_of_books_float
                              : Choice::few_of_bytes_float);
}

bool few_rows(const FloatWeight& w, const void* x, Dtype dtype, int64_t rows, const Output& out,
              int threads) {
    FullPrecision guard;
    Kind k;
    Few p{};
    kind(w.spec->element, &k);
    blocks_of(k, w, &p.blocks);
    int64_t columns = w.grid.columns, n = w.grid.rows, unit = k.vectors * 16;
    p.w = &w;
    p.decoding = decoding_of(*w.spec);
    Steps steps = steps_of(w, p.blocks);
    p.factor = w.offsets ? 1.0f : p.decoding.factor * (steps == Steps::floats ? 1.0f : w.outer);
    if (steps == Steps::minifloats) p.factor *= 256.0f;  // a float16's bias less an e4m3's
    p.units = ceil_div(columns, k.unit);
    p.row_bytes = w.spec->row_bytes(columns);
    p.row_blocks = w.grid.scale_columns();
    p.bias = out.bias;
    int64_t size = p.units * unit * rows;
    float* arranged = reinterpret_cast<float*>(
        linear_scratch().of((size + columns + rows * n) * sizeof(float) + 64));
    float *widened = arranged + size, *y = widened + columns;
    memset(arranged, 0, size * sizeof(float));
    for (int64_t row = 0; row < rows; ++row) {
        int64_t pass = row / kMost * kMost, together = smaller(kMost, rows - pass);
        const float* values = widen(x, dtype, row * columns, columns, widened);
        if (!usable(values, columns)) return false;
        float* to = arranged + pass * p.units * unit + (row - pass) * unit;
        arrange(k, values, columns, together * unit, to);
    }
    for (int64_t pass = 0; pass < rows; pass += kMost) {
        p.x = arranged + pass * p.units * unit;
        p.y = (out.dtype == Dtype::fp32 ? static_cast<float*>(out.y) : y) + pass * n;
        run_all(p, k.pair(w, steps, smaller(kMost, rows - pass)), threads);
    }
    if (out.dtype != Dtype::fp32) narrow(y, out.dtype, rows * n, static_cast<uint16_t*>(out.y));
    return true;
}

#else

int64_t few(const FloatWeight&, int) { return 0; }

bool few_rows(const FloatWeight&, const void*, Dtype, int64_t, const Output&, int) { return false; }

#endif

}  // namespace blockscale::BLOCKSCALE_ISA
