// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of planes: x and the result channels first, each channel a plane. Vectors run along the
// pixels of a line, so that nothing is turned, and numbers of x become codes on their way into a slab.
//
// A cell of the slab is a pixel's number of one channel in float32 or, with vpdpbusd, four channels' codes or
// those of four neighbours of an only channel: less the lowest, so that they are unsigned; what that adds to a
// sum is known before (`starts`).
#include "planes.h"

#include "../simd/environment.h"
#include "decoded.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kNear = 6 << 10;   // cells of 4 bytes: of the first-level cache
#if defined(__AVX512F__)
constexpr int kMost = 4, kSums = 16;  // outputs at a time; vectors of sums
#else
constexpr int kMost = 2, kSums = 8;
#endif

// So many lines at a time, of so many vectors for so many outputs.
constexpr int lines_of(int outputs, int vectors) {
    int lines = kSums / (outputs * vectors);
    return lines < 1 ? 1 : lines > 8 ? 8 : lines;
}

template <bool CODES>
struct SumOf {
    using Type = Vector;
};
template <>
struct SumOf<true> {
    using Type = Ints;
};

inline void add(Vector& sum, Vector x, Vector w) { sum = multiply_add(x, w, sum); }

inline void add(Ints& sum, Vector x, Vector w) {
#if defined(__AVX512VNNI__)  // a line of assembly, as in tile_vnni.h
    Ints own = sum;  // GCC keeps arrays in memory whose elements are operands of assembly
    asm("vpdpbusd %2, %1, %0" : "+v"(own) : "v"(x), "v"(w));
    sum = own;
#else
    (void)sum, (void)x, (void)w;
#endif
}

inline Vector everywhere(const float* cell) {
    int32_t bits;
    copy<4>(&bits, cell);
    return (Vector)(Ints{} + bits);
}

// Where sums go: outputs from `output` on, lines and columns of the result that are there.
struct Spot {
    int64_t image, output, pixel, lines, columns;
};

// Lines of sums into the result: as they are, or scaled; in the order of the integer tiles.
template <bool CODES>
[[gnu::noinline]] void end_lines(const Work& p, int64_t output, const float* sums, int64_t stride, int64_t to,
                                 int64_t lines, int64_t count) {
    using Sums = typename SumOf<CODES>::Type;
    const Vector step = everywhere(p.steps ? p.steps + output : p.bias), bias = everywhere(p.bias + output);
    const Vector x_step = all(p.x->step);
    const bool plain = p.out.dtype == Dtype::fp32, scaled = p.steps;
    float wide[kWide * kFloats];
    for (int64_t line = 0; line < lines; ++line, sums += stride, to += p.at.out[2]) {
        float* y = plain ? static_cast<float*>(p.out.y) + to : wide;
        for (int64_t i = 0; i < count; i += kFloats) {
            Vector sum = load(sums + i);
            if constexpr (CODES) sum = __builtin_convertvector((Sums)sum + p.starts[output], Vector);
            if (scaled) sum = sum * step;
            put(y + i, multiply_add(sum, x_step, bias), plain ? count - i : kFloats);
        }
        if (!plain) narrow(wide, p.out.dtype, count, static_cast<uint16_t*>(p.out.y) + to);
    }
}

// R outputs of L lines of V vectors.
template <int R, int V, int L, bool CODES>
void sum_tile(const Work& p, const float* x, const float* weight, const Spot& at) {
    typename SumOf<CODES>::Type sum[R][L][V] = {};
    const int64_t line = p.at.stride[1] * p.pitch;
    for (int64_t i = 0; i < p.terms; ++i, weight += kPanel) {
        const float* from = x + p.offsets[i];
        Vector w[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) w[r] = everywhere(weight + r);
#pragma GCC unroll 8
        for (int l = 0; l < L; ++l)
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) {
                Vector cells = load(from + l * line + v * kFloats);
#pragma GCC unroll 4
                for (int r = 0; r < R; ++r) add(sum[r][l][v], cells, w[r]);
            }
    }
    alignas(64) float sums[R][L][V * kFloats];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int l = 0; l < L; ++l)
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) store(sums[r][l] + v * kFloats, (Vector)sum[r][l][v]);
    int64_t lines = smaller(L, at.lines);
    for (int r = 0; r < R; ++r)
        end_lines<CODES>(p, at.output + r, sums[r][0], V * kFloats,
                         (at.image * p.n + at.output + r) * p.pixels() + at.pixel, lines, at.columns);
}

using SumTile = void (*)(const Work&, const float*, const float*, const Spot&);

// Of up to M outputs at a time, `outputs` now.
template <int M, int V, bool CODES>
SumTile tile_of(int64_t outputs) {
    constexpr int L = lines_of(M, V);
    if constexpr (M >= 4)
        if (outputs >= 4) return sum_tile<4, V, L, CODES>;
    if constexpr (M >= 2)
        if (outputs >= 2) return sum_tile<2, V, L, CODES>;
    return sum_tile<1, V, L, CODES>;
}

// The columns of a band from `begin` to `end`, V vectors at a time, in chunks of tiles whose x stays near while
// the outputs pass by, each of which is written along its lines.
template <int M, int V, bool CODES>
void sum_columns(const Work& p, const Band& band, int64_t begin, int64_t end, const float* slab) {
    constexpr int64_t L = lines_of(M, V), kColumns = V * kFloats;
    int64_t beside = ceil_div(end - begin, kColumns), tiles = ceil_div(band.count, L) * beside;
    int64_t together = larger(1, kNear / (p.depth * kColumns * L)), last = (band.group + 1) * p.each;
    for (int64_t first = 0; first < tiles; first += together)
        for (int64_t output = band.group * p.each, step; output < last; output += step) {
            int64_t within = output % kPanel, left = smaller(last - output, kPanel - within);
            step = left >= 4 && M >= 4 ? 4 : left >= 2 && M >= 2 ? 2 : 1;
            SumTile run = tile_of<M, V, CODES>(step);
            const float* weight = p.weight + (output - within) * p.terms + within;
            for (int64_t t = first; t < smaller(tiles, first + together); ++t) {
                int64_t line = t / beside * L, column = begin + t % beside * kColumns;
                int64_t above = band.place * p.at.out[1] + band.first + line;
                run(p, slab + line * p.at.stride[1] * p.pitch + column, weight,
                    {band.image, output, above * p.at.out[2] + band.column + column, band.count - line,
                     smaller(kColumns, end - column)});
            }
        }
}

template <int M, bool CODES>
void sum_band(const Work& p, const Band& band, const float* slab) {
    int64_t all = band.columns, whole = all / (kWide * kFloats) * kWide * kFloats, rest = all - whole;
    if (rest > 2 * kFloats || band.count == 1) whole = all, rest = 0;
    if (whole) sum_columns<M, kWide, CODES>(p, band, 0, whole, slab);
    if (rest > kFloats) {
        sum_columns<M, 2, CODES>(p, band, whole, all, slab);
    } else if (rest) {
        sum_columns<M, 1, CODES>(p, band, whole, all, slab);
    }
}

template <bool CODES>
void sum_all(const Work& p, const Band& band, const float* slab) {
    if (p.each >= 4 && kMost >= 4) return sum_band<kMost, CODES>(p, band, slab);
    if (p.each >= 2) return sum_band<2, CODES>(p, band, slab);
    sum_band<1, CODES>(p, band, slab);
}

void find_sizes(Work& p) {
    Window& w = p.at;
    p.alone = true;
    for (int i = 0; i < 3; ++i) p.alone &= w.kernel[i] == 1 && w.stride[i] == 1 && w.padding[i] == 0;
    if (p.alone) {
        w.size[2] = w.out[2] = p.pixels();
        w.size[0] = w.size[1] = w.out[0] = w.out[1] = 1;
    }
    p.columns = w.out[2];
    if (p.alone) p.columns = smaller(p.columns, larger(1, kSlab / (p.depth * 64)) * 64);
    int64_t reach = (w.kernel[2] - 1) * w.dilation[2], span = (w.kernel[1] - 1) * w.dilation[1] + 1;
    int64_t read = p.alone ? p.columns : w.padding[2] + w.size[2];  // cells of x beyond the last one's reach, too
    p.phase = larger(p.columns + reach / w.stride[2], ceil_div(read, w.stride[2]));
    p.pitch = (p.phase * w.stride[2] / kLine | 1) * kLine;  // lines of the cache: not all in the same of its sets
    if (p.pitch < p.phase * w.stride[2]) p.pitch += 2 * kLine;
    int64_t fit = (kSlab / (p.depth * w.kernel[0] * p.pitch) - span) / w.stride[1] + 1;
    p.band = smaller(w.out[1], larger(1, fit));
    p.lines = (p.band - 1) * w.stride[1] + span;
}

void find_offsets(const Work& p, int64_t* offsets) {
    const Window& w = p.at;
    for (int64_t a = 0; a < w.kernel[0]; ++a)
        for (int64_t b = 0; b < w.kernel[1]; ++b)
            for (int64_t c = 0; c < w.kernel[2]; c += p.beside ? kCell : 1)
                for (int64_t cell = 0; cell < p.depth; ++cell) {
                    int64_t line = (cell * w.kernel[0] + a) * p.lines + b * w.dilation[1];
                    int64_t column = c * w.dilation[2];
                    *offsets++ = line * p.pitch + column % w.stride[2] * p.phase + column / w.stride[2];
                }
}

void run_all(const Work& p, int threads) {
    const Window& w = p.at;
    int64_t bands = ceil_div(w.out[1], p.band), parts = ceil_div(w.out[2], p.columns);
    int64_t items = p.x->batch * p.x->groups * w.out[0] * bands * parts;
    Lack lack;
#pragma omp parallel num_threads(startable(threads)) if (threads > 1)
    {
        FullPrecision guard;
        Later<Buffers> buffers;
        lack.carry([&] { buffers.make(p); });
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items; ++item) lack.carry([&] {
            int64_t column = item % parts * p.columns, left = item / parts, first = left % bands * p.band;
            left /= bands;
            int64_t place = left % w.out[0], group = left / w.out[0] % p.x->groups;
            Band band{left / w.out[0] / p.x->groups, group, place, first, smaller(p.band, w.out[1] - first),
                      column, smaller(p.columns, w.out[2] - column)};
            fill_slab(p, band, *buffers);
            p.starts ? sum_all<true>(p, band, (*buffers).slab) : sum_all<false>(p, band, (*buffers).slab);
        });
    }
    lack.raise();
}

Work plan_of(const FloatWeight& w, const Image& x, const Output& out, bool codes) {
    Work p{};
    p.x = &x, p.spec = w.spec, p.at = x.window, p.out = out, p.n = w.grid.rows;
    p.inner = x.window.channels / x.groups, p.each = p.n / x.groups;
    p.beside = codes && p.inner == 1;
    p.depth = codes ? ceil_div(p.inner, kCell) : p.inner;
    p.terms = p.depth * p.at.cells();
    if (p.beside) p.terms = p.at.kernel[0] * p.at.kernel[1] * ceil_div(p.at.kernel[2], kCell);
    find_sizes(p);
    return p;
}

bool run_packed(const FloatWeight& w, const PlaneWeight& packed, const Image& x, const Output& out, int threads) {
    const bool codes = packed.whole;
    Work p = plan_of(w, x, out, codes);
    p.move = x.by->zero_point - static_cast<int32_t>(x.by->spec->element.low);
    if (codes && (p.move < 0 || p.move > 255)) return false;  // no code is 0
    int64_t outputs = ceil_div(p.n, kPanel) * kPanel;
    Array<float> steps(outputs), bias(outputs);
    Array<int32_t> starts(outputs);
    Array<int64_t> offsets(p.terms);
    memset(bias, 0, outputs * 4);
    if (out.bias) memcpy(bias, out.bias, p.n * 4);
    for (int64_t i = 0; i < outputs; ++i) {
        steps[i] = w.steps[smaller(i, p.n - 1) / w.grid.block_rows];
        starts[i] = codes ? -p.move * packed.sums[i] : 0;
    }
    find_offsets(p, offsets);
    p.weight = reinterpret_cast<const float*>(packed.codes);
    p.steps = steps, p.bias = bias, p.starts = codes ? starts.get() : nullptr, p.offsets = offsets;
    run_all(p, threads);
    return true;
}

}  // namespace

bool planes(const FloatWeight& w, const PlaneWeight* packed, const Image& x, const Output& out, int threads) {
    FullPrecision guard;
    if (packed) return run_packed(w, *packed, x, out, threads);
    Work p = plan_of(w, x, out, false);
    Decoded decoded(w, out.bias, x.by && one_step_each(w));
    if (!decoded.finite(w)) return false;  // times zeros beyond the edges
    Array<int64_t> offsets(p.terms);
    find_offsets(p, offsets);
    p.weight = decoded.weight, p.steps = decoded.late_steps(), p.bias = decoded.bias, p.offsets = offsets;
    run_all(p, threads);
    return true;
}

namespace {

// [panels][cells under the kernel][32][4]; false where a code is none of int8.
bool pack_cells(const PlaneShape& shape, Decoded& decoded, int64_t k, int8_t* cells, int32_t* sums) {
    int64_t line = shape.inner == 1 ? shape.width : shape.inner;  // of codes that share cells
    int64_t depth = ceil_div(line, kCell), terms = shape.cells(k);
    memset(cells, 0, decoded.outputs * terms * kCell);
    memset(sums, 0, decoded.outputs * 4);
    for (int64_t first = 0; first < decoded.outputs; first += kPanel)
        for (int64_t i = 0; i < k; ++i) {
            int64_t term = i / line * depth + i % line / kCell;
            int8_t* to = cells + (first * terms + term * kPanel) * kCell + i % line % kCell;
            for (int64_t lane = 0; lane < kPanel; ++lane) {
                float code = decoded.weight[first * k + i * kPanel + lane];
                if (!(code >= -128.0f && code <= 127.0f)) return false;
                to[lane * kCell] = static_cast<int8_t>(code);
                sums[first + lane] += static_cast<int32_t>(code);
            }
        }
    return true;
}

}  // namespace

bool pack_planes(const FloatWeight& w, const PlaneShape& shape, int8_t* cells, int32_t* sums, bool* whole) {
    constexpr int64_t kMostTerms = INT32_MAX / (255 * 128);  // whose sums int32 holds
    if (!one_step_each(w)) return false;
    FullPrecision guard;
    Decoded decoded(w, nullptr, true);
    int64_t k = w.grid.columns;
#if defined(__AVX512VNNI__)
    *whole = k <= kMostTerms && (shape.inner > 1 || shape.width) && pack_cells(shape, decoded, k, cells, sums);
#else
    (void)sums, (void)kMostTerms, (void)pack_cells;
    *whole = false;
#endif
    if (*whole) return true;
    if (shape.inner == 1) memcpy(cells, decoded.weight, decoded.outputs * k * kCell);
    return shape.inner == 1;
}

}  // namespace blockscale::BLOCKSCALE_ISA
