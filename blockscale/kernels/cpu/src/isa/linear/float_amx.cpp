// Linear layers of many rows of float x on the matrix unit, by products of bf16 numbers. A float32 is the
// sum of up to three of them, its parts, and most weights need only one. Products of parts are exact; only
// those below 2^-22 of the whole are left out. Where the unit, which takes subnormals for 0, could change a
// result by more than float32 rounds, float.cpp computes all of it.
#include "../../linear.h"
#include "../../tuning/tuning.h"
#include "../simd/environment.h"
#include "../simd/floats.h"
#include "amx.h"
#include "scratch.h"

namespace blockscale::BLOCKSCALE_ISA {

#if defined(BLOCKSCALE_MATRICES)

const Primitives& primitives();

namespace {

constexpr int64_t kAlong = 32;               // numbers along k of a product
constexpr int64_t kDepth = 512;              // of the weight's decoded piece, along k
constexpr int64_t kStride = kDepth + 16;     // rows a power of two apart would share few cache lines
constexpr int64_t kParts = 3;                // of a float32
constexpr int64_t kPart = kPanel * kAlong;   // numbers: a part of 32 outputs in one product
constexpr int64_t kPiece = kDepth * kPanel * kParts;  // the same in all of a piece
constexpr int64_t kPanels = 4;               // that are decoded before rows of x pass by
constexpr int64_t kRows = 512;               // of x at a time: their sums stay in L2
constexpr int64_t kBytes = 16 << 20;         // of x at a time, in parts

// Of some numbers: magnitudes of the largest and of the smallest but 0, and all bits there are, as integers.
struct Range {
    int32_t high = 0, low = INT32_MAX, all = 0;

    int64_t parts() const { return (all & 0xFFFF) == 0 ? 1 : (all & 0xFF) == 0 ? 2 : kParts; }
    void add(const Range& other) {
        high = static_cast<int32_t>(larger(high, other.high));
        low = static_cast<int32_t>(smaller(low, other.low));
        all |= other.all;
    }
};

// Whether products of numbers of two tensors, and sums of them, stay far from float32's limits. Between
// 2^-94 and 2^120 what the unit takes for 0 is too small to count.
bool tame(const Range& a, const Range& b) {
    constexpr int32_t kHigh = (127 + 60) << 23, kLow = (127 - 80) << 23;
    if (a.high > kHigh || b.high > kHigh || a.low < kLow || b.low < kLow) return false;
    return int64_t{a.low >> 23} + (b.low >> 23) >= 2 * 127 - 94;
}

// n numbers, a multiple of 32.
Range range_of(const float* x, int64_t n) {
    __m512i high = _mm512_setzero_si512(), low = _mm512_set1_epi32(INT32_MAX), bits = high;
    for (int64_t i = 0; i < n; i += 16) {
        __m512i one = _mm512_loadu_si512(x + i);
        __m512i size = _mm512_and_si512(one, _mm512_set1_epi32(INT32_MAX));
        bits = _mm512_or_si512(bits, one);
        high = _mm512_max_epi32(high, size);
        low = _mm512_mask_min_epi32(low, _mm512_test_epi32_mask(size, size), low, size);
    }
    return {_mm512_reduce_max_epi32(high), _mm512_reduce_min_epi32(low), _mm512_reduce_or_epi32(bits)};
}

// The next part of 32 numbers, in order; `rest` is what they are beyond it.
inline __m512i next_part(__m512 (&rest)[2]) {
    const __m512i half = _mm512_set1_epi32(0x8000), mask = _mm512_set1_epi32(-0x10000);
    __m512i top[2];
    for (int i = 0; i < 2; ++i) {
        top[i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest[i]), half), mask);
        rest[i] = _mm512_sub_ps(rest[i], _mm512_castsi512_ps(top[i]));
    }
    alignas(64) static constexpr uint16_t kUpper[32] = {
        1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16(top[0], _mm512_load_si512(kUpper), top[1]);
}

// Rows of 16 words become columns.
inline void transpose(__m512i (&v)[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            v[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            v[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < 4; ++i) {  // v[4 g + i]: column i of each lane, of rows 4 g to 4 g + 3
        __m512i low = _mm512_shuffle_i32x4(v[i], v[4 + i], 0x88);
        __m512i high = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0x88);
        __m512i low_odd = _mm512_shuffle_i32x4(v[i], v[4 + i], 0xDD);
        __m512i high_odd = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0xDD);
        t[i] = _mm512_shuffle_i32x4(low, high, 0x88);
        t[8 + i] = _mm512_shuffle_i32x4(low, high, 0xDD);
        t[4 + i] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
    }
    for (int i = 0; i < 16; ++i) v[i] = t[i];
}

struct Work {
    const FloatWeight* w;
    const void* x;
    Dtype dtype;
    Output out;
    int64_t parts;        // of x's numbers
    int64_t panels;       // of the weight, that are decoded together
    int64_t first, rows;  // of x at a time
    uint16_t* x_parts;    // [tile][step][part][row][32]

    int64_t k() const { return w->grid.columns; }
    int64_t n() const { return w->grid.rows; }
    int64_t steps() const { return ceil_div(k(), kAlong); }
    int64_t row_parts() const { return steps() * parts * kAlong; }
    int64_t tiles() const { return ceil_div(rows, kTileRows); }
    int64_t side(int64_t tile) const {
        return rows - tile * kTileRows > kMatrixRows ? kTileRows : kMatrixRows;
    }
};

// A row of x in parts.
Range split_row(const Work& p, int64_t row) {
    int64_t tile = row / kTileRows, side = p.side(tile);
    uint16_t* to = p.x_parts + tile * kTileRows * p.row_parts() + row % kTileRows * kAlong;
    alignas(64) float buffer[kDepth];
    Range range;
    for (int64_t column = 0; column < p.k(); column += kDepth) {
        int64_t n = smaller(kDepth, p.k() - column), whole = ceil_div(n, kAlong) * kAlong;
        const float* x = widen(p.x, p.dtype, (p.first + row) * p.k() + column, n, buffer);
        if (x != buffer && n < whole) memcpy(buffer, x, n * 4), x = buffer;
        for (int64_t i = n; i < whole; ++i) buffer[i] = 0.0f;
        range.add(range_of(x, whole));
        for (int64_t i = 0; i < whole; i += kAlong) {
            __m512 rest[2] = {_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16)};
            for (int64_t part = 0; part < p.parts; ++part, to += side * kAlong)
                _mm512_storeu_si512(to, next_part(rest));
        }
    }
    return range;
}

// What a thread works with: a panel as numbers [32][kStride], panels in parts [panel][step][part][16 pairs]
// [32 outputs][2], and sums [panel][row][32].
struct Buffers {
    float* decoded;
    uint16_t* weight;
    float* sums;

    explicit Buffers(const Work& p) {
        int64_t numbers = kPanel * kStride * 4, parts = p.panels * kPiece * 2;
        int64_t rows = p.tiles() * kTileRows;
        char* at = linear_scratch<Use::own>().of(numbers + parts + p.panels * rows * kPanel * 4);
        decoded = reinterpret_cast<float*>(at);
        weight = reinterpret_cast<uint16_t*>(at + numbers);
        sums = reinterpret_cast<float*>(at + numbers + parts);
    }
};

// A piece of a panel, decoded and in parts. `steps`: of its products.
Range split_panel(const Work& p, int64_t panel, int64_t column, int64_t steps, float* decoded,
                  uint16_t* to) {
    int64_t from = panel * kPanel, count = smaller(kPanel, p.n() - from);
    int64_t depth = smaller(kDepth, p.k() - column);
    if (count < kPanel || depth < steps * kAlong) memset(decoded, 0, kPanel * kStride * 4);
    primitives().decode(*p.w->spec, p.w->grid, p.w->codes, p.w->steps, p.w->zero_points,
                        p.w->offsets, from, count, column, depth, decoded, kStride);
    Range range;
    for (int64_t i = 0; i < kPanel; ++i) range.add(range_of(decoded + i * kStride, steps * kAlong));
    int64_t parts = range.parts();
    for (int64_t step = 0; step < steps; ++step, to += parts * kPart)
        for (int64_t half = 0; half < 2; ++half) {
            __m512i pairs[kParts][16];
            for (int64_t i = 0; i < 16; ++i) {
                const float* row = decoded + (half * 16 + i) * kStride + step * kAlong;
                __m512 rest[2] = {_mm512_loadu_ps(row), _mm512_loadu_ps(row + 16)};
                for (int64_t part = 0; part < parts; ++part) pairs[part][i] = next_part(rest);
            }
            for (int64_t part = 0; part < parts; ++part) {
                transpose(pairs[part]);
                uint16_t* at = to + part * kPart + half * kAlong;
                for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(at + i * 2 * kPanel, pairs[part][i]);
            }
        }
    return range;
}

// Sums [rows][32] += a piece of a tile of x times that of a panel.
template <bool TALL>
void multiply(Tiles& tiles, const uint16_t* x, const uint16_t* w, int64_t x_parts, int64_t w_parts,
              int64_t steps, float* sums) {
    constexpr int64_t kRow = kPanel * 4, kSide = TALL ? 32 : 16;  // bytes
    float* low = sums + kMatrixRows * kPanel;
    tiles.load<0>(sums, kRow), tiles.load<1>(sums + 16, kRow);
    if constexpr (TALL) tiles.load<2>(low, kRow), tiles.load<3>(low + 16, kRow);
    for (int64_t step = 0; step < steps; ++step, x += x_parts * kSide * kAlong) {
        const char* next = reinterpret_cast<const char*>(x + x_parts * kSide * kAlong);
        for (int64_t i = 0; i < x_parts * kSide * kAlong * 2; i += 64) _mm_prefetch(next + i, _MM_HINT_T0);
        for (int64_t part = 0; part < w_parts; ++part, w += kPart) {
            for (int64_t i = 0; i < kPart * 2; i += 64)  // of the next step
                _mm_prefetch(reinterpret_cast<const char*>(w + w_parts * kPart) + i, _MM_HINT_T0);
            tiles.load<6>(w, kRow), tiles.load<7>(w + kAlong, kRow);
            for (int64_t other = 0; other < smaller(x_parts, kParts - part); ++other) {
                const uint16_t* rows = x + other * kSide * kAlong;
                tiles.load<4>(rows, kMatrixBytes);
                tiles.dot_bf16<0, 4, 6>(), tiles.dot_bf16<1, 4, 7>();
                if constexpr (TALL) {
                    tiles.load<5>(rows + kMatrixRows * kAlong, kMatrixBytes);
                    tiles.dot_bf16<2, 5, 6>(), tiles.dot_bf16<3, 5, 7>();
                }
            }
        }
    }
    tiles.store<0>(sums, kRow), tiles.store<1>(sums + 16, kRow);
    if constexpr (TALL) tiles.store<2>(low, kRow), tiles.store<3>(low + 16, kRow);
}

// A panel's sums -> y, with the bias.
void store_panel(const Work& p, int64_t panel, const float* sums) {
    int64_t from = panel * kPanel, count = smaller(kPanel, p.n() - from);
    int64_t bytes = dtype_bytes(p.out.dtype);
    float bias[kPanel] = {}, line[kPanel];
    if (p.out.bias) memcpy(bias, p.out.bias + from, count * 4);
    for (int64_t row = 0; row < p.rows; ++row, sums += kPanel) {
        for (int64_t i = 0; i < kPanel; ++i) line[i] = sums[i] + bias[i];
        char* y = static_cast<char*>(p.out.y) + ((p.first + row) * p.n() + from) * bytes;
        if (p.out.dtype == Dtype::fp32) {
            memcpy(y, line, count * 4);
        } else {
            narrow(line, p.out.dtype, count, reinterpret_cast<uint16_t*>(y));
        }
    }
}

// Panels from `begin` to `end`. False if the weight is not tame beside x.
bool run_panels(const Work& p, int64_t begin, int64_t end, const Range& x, Tiles& tiles) {
    Buffers b(p);
    int64_t parts[kPanels], rows = p.tiles() * kTileRows;
    memset(b.sums, 0, (end - begin) * rows * kPanel * 4);
    for (int64_t column = 0; column < p.k(); column += kDepth) {
        int64_t steps = ceil_div(smaller(kDepth, p.k() - column), kAlong);
        for (int64_t i = 0; i < end - begin; ++i) {
            Range range = split_panel(p, begin + i, column, steps, b.decoded, b.weight + i * kPiece);
            parts[i] = range.parts();
            if (!tame(range, x)) return false;
        }
        for (int64_t tile = 0; tile < p.tiles(); ++tile) {
            int64_t side = p.side(tile);
            const uint16_t* from = p.x_parts + tile * kTileRows * p.row_parts() + column * p.parts * side;
            auto run = side == kTileRows ? multiply<true> : multiply<false>;
            for (int64_t i = 0; i < end - begin; ++i)
                run(tiles, from, b.weight + i * kPiece, p.parts, parts[i], steps,
                    b.sums + (i * rows + tile * kTileRows) * kPanel);
        }
    }
    for (int64_t i = begin; i < end; ++i) store_panel(p, i, b.sums + (i - begin) * rows * kPanel);
    return true;
}

bool run_rows(const Work& p, int threads) {
    int64_t panels = ceil_div(p.n(), kPanel), groups = ceil_div(panels, p.panels);
    Lack lack;
    int high = 0, low = INT32_MAX, wild = 0;
#pragma omp parallel num_threads(startable(threads)) if (threads > 1)
    {
        FullPrecision guard;
        Tiles tiles(kMatrixBytes);
#pragma omp for schedule(static) reduction(max : high) reduction(min : low)
        for (int64_t row = 0; row < p.rows; ++row) {
            Range range = split_row(p, row);
            high = static_cast<int>(larger(high, range.high));
            low = static_cast<int>(smaller(low, range.low));
        }
        Range x{high, low, 0};
#pragma omp for schedule(dynamic) reduction(| : wild)
        for (int64_t group = 0; group < groups; ++group) lack.carry([&] {
            int64_t begin = group * p.panels, end = smaller(panels, begin + p.panels);
            wild |= !run_panels(p, begin, end, x, tiles);
        });
    }
    lack.raise();
    return !wild;
}

// Rows of x from which matrices are faster: the more parts its numbers and the weight's have, the more
// products there are. Powers of two leave an element one part.
int64_t fewest_rows(const Spec& spec, Dtype dtype) {
    bool power = spec.scale == ScaleKind::e8m0 || spec.scale == ScaleKind::pow2;
    bool one_part = power && spec.element.bits <= 8 && spec.offset == Stored::none;
    if (dtype == Dtype::bf16)
        return chosen(one_part ? Choice::bf16_rows_float : Choice::bf16_rows_of_parts_float);
    return chosen(one_part ? Choice::wide_rows_float : Choice::wide_rows_of_parts_float);
}

}  // namespace

bool float_matrices(const FloatWeight& w, const void* x, Dtype dtype, int64_t rows,
                    const Output& out, int threads) {
    if (rows < fewest_rows(*w.spec, dtype)) return false;
    Work p{.w = &w, .x = x, .dtype = dtype, .out = out,
           .parts = dtype == Dtype::bf16 ? 1 : dtype == Dtype::fp16 ? 2 : kParts,
           .panels = 1, .first = 0, .rows = rows, .x_parts = nullptr};
    if (p.k() == 0 || p.n() == 0 || rows == 0) return false;
    int64_t share = ceil_div(p.n(), kPanel) / (2 * threads);
    p.panels = smaller(kPanels, larger(1, share));
    int64_t fit = larger(1, kBytes / (p.row_parts() * 2) / kTileRows) * kTileRows;
    int64_t most = smaller(ceil_div(rows, kTileRows) * kTileRows, smaller(fit, kRows));
    p.x_parts = reinterpret_cast<uint16_t*>(linear_scratch().of(most * p.row_parts() * 2));
    for (p.first = 0; p.first < rows; p.first += most) {
        p.rows = smaller(most, rows - p.first);
        if (!run_rows(p, threads)) return false;
    }
    return true;
}

#else

bool float_matrices(const FloatWeight&, const void*, Dtype, int64_t, const Output&, int) {
    return false;
}

#endif

}  // namespace blockscale::BLOCKSCALE_ISA
