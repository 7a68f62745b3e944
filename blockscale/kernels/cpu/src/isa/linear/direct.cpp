// SPDX-License-Identifier: BSD-3-Clause
// Convolutions without patches, in float32: lines of x lie in a slab, whose numbers are multiplied where
// they are. For few channels to an output, where patches cost more than their products. Of codes the
// sums are those of integers, exact below 2^24.
//
// Vectors run along the outputs. Where each output sees channels of its own, so does each lane of the
// slab; else a number of the slab is one broadcast. Where it sees one channel of 8 bits, vpdpbusd multiplies:
// a cell of the slab is then four neighbours of a line, less the lowest code (`starts` takes that off again).
#include "../simd/environment.h"
#include "decoded.h"
#include "epilogue.h"
#include "shifts.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kSlab = 48 << 10;  // numbers: of the second-level cache
constexpr int64_t kNear = 8 << 10;   // cells of four codes: of the first-level cache
constexpr int kCell = 4;
constexpr int64_t kLanes = 2 * kFloats;
constexpr int kPixels = kTileOutputs;  // with two vectors of outputs: as many sums as registers hold

struct Work {
    const Image* x;
    const FloatWeight* w;
    Output out;
    const float* weight;  // [panels][terms][32] numbers or cells
    const float* steps;   // [panels * 32], or null
    const int32_t* starts;  // of cells, the same: what their sums begin with; null: numbers
    const float* bias;    // [panels * 32]
    bool spread;          // lanes of the slab are those of a panel
    int64_t inner;        // channels that an output sees
    int64_t each;         // outputs of a group
    int64_t cell;         // numbers of a pixel in the slab
    int64_t columns, lines, band;  // of the slab; of the result: lines at a time
    int64_t terms;                 // numbers or cells under the kernel
    const int64_t* offsets;        // [terms] of them in the slab

    const Window& at() const { return x->window; }
    int64_t n() const { return w->grid.rows; }
    int64_t panels() const { return ceil_div(n(), kPanel); }
    int64_t pixels_in() const { return at().size[0] * at().size[1] * at().size[2]; }
    int64_t pixels() const { return at().out[0] * at().out[1] * at().out[2]; }
    int64_t channel(int64_t output, int64_t i) const { return output / each * inner + i; }
    // What makes codes of cells unsigned, and the zero point as one of those.
    int32_t flip() const { return x->codes->element.is_signed ? 128 : 0; }
    int32_t zero() const { return x->zero_point + flip(); }
};

// Lines `first` to `first + count` of the result in one image and place of the first dimension.
struct Band {
    int64_t image, place, first, count;

    int64_t pixel(const Work& p) const { return (place * p.at().out[1] + first) * p.at().out[2]; }
    int64_t pixels(const Work& p) const { return count * p.at().out[2]; }
};

struct Buffers {
    explicit Buffers(const Work& p)
        : memory(p.at().kernel[0] * p.lines * p.columns * p.cell + 64),
          line(line_size(p)), sums(p.band * p.at().out[2] * kPanel + 64) {
        slab = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) & ~uintptr_t{63});
    }

    // The channels of a panel.
    static int64_t line_size(const Work& p) { return (kPanel / p.each + 2) * p.inner + 64; }

    Array<float> memory, line, sums;
    float* slab;  // in `memory`, where vectors cross no lines of the cache
};

typedef uint8_t Bytes __attribute__((vector_size(kFloats)));

inline Ints widened(Bytes bytes) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepu8_epi32((__m128i)bytes);
#else
    return __builtin_convertvector(bytes, Ints);
#endif
}

// n neighbours of x from index `first` on: numbers, or codes less the zero point.
const float* numbers(const Image& x, int64_t first, int64_t n, float* buffer) {
    if (!x.codes) return widen(x.x, x.dtype, first, n, buffer);
    const uint8_t* codes = static_cast<const uint8_t*>(x.x) + first;
    const Element& e = x.codes->element;
    int shift = e.is_signed ? 32 - e.bits : 0;
    int64_t i = 0;
    for (; i + kFloats <= n; i += kFloats) {
        Bytes bytes;
        copy<kFloats>(&bytes, codes + i);
        Ints wide = (widened(bytes) << shift) >> shift;
        store(buffer + i, __builtin_convertvector(wide - x.zero_point, Vector));
    }
    for (; i < n; ++i) {
        int32_t wide = static_cast<int32_t>(static_cast<uint32_t>(codes[i]) << shift) >> shift;
        buffer[i] = static_cast<float>(wide - x.zero_point);
    }
    return buffer;
}

// A line of x whose pixel 0 has that index into the slab at `to`. first: output.
void read_pixels(const Work& p, int64_t image, int64_t pixel, int64_t first, Buffers& b, float* to) {
    int64_t size = p.at().size[2], channels = p.at().channels;
    int64_t from = (image * p.pixels_in() + pixel) * channels;
    if (!p.spread) {
        const float* line = numbers(*p.x, from, size * channels, to);
        if (line != to) memcpy(to, line, size * channels * 4);
        return;
    }
    int64_t outputs = smaller(kPanel, p.n() - first), low = p.channel(first, 0);
    int64_t count = p.channel(first + outputs - 1, p.inner - 1) + 1 - low;
    bool same = p.inner == 1 && p.each == 1;
    for (int64_t i = 0; i < size; ++i, to += p.cell) {
        float* buffer = same ? to : b.line.get();
        const float* line = numbers(*p.x, from + i * channels + low, count, buffer);
        if (same) {
            if (line != to) memcpy(to, line, count * 4);
            continue;
        }
        for (int64_t j = 0; j < p.inner; ++j)
            for (int64_t lane = 0; lane < outputs; ++lane)
                to[j * kPanel + lane] = line[p.channel(first + lane, j) - low];
    }
}

#if defined(__AVX512VNNI__)
// The codes of a pixel that the lanes of a panel see, from `first` output on.
struct Lanes {
    const Work& p;
    int64_t first, outputs;
    bool same;

    Lanes(const Work& work, int64_t output)
        : p(work), first(output), outputs(smaller(kPanel, work.n() - output)), same(work.each == 1) {}

    // 16 of them, from lane `low` on; zeros where there are none.
    __m512i of(int64_t pixel, int64_t low) const {
        const uint8_t* codes = static_cast<const uint8_t*>(p.x->x) + pixel * p.at().channels;
        if (same) {
            int64_t count = outputs - low;
            if (count >= kFloats) return _mm512_cvtepu8_epi32(_mm_loadu_si128(
                reinterpret_cast<const __m128i*>(codes + first + low)));
            if (count <= 0) return _mm512_setzero_si512();
            __mmask16 mask = static_cast<__mmask16>((1 << count) - 1);
            return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, codes + first + low));
        }
        alignas(16) uint8_t few[kFloats] = {};
        for (int64_t lane = low; lane < smaller(outputs, low + kFloats); ++lane)
            few[lane - low] = codes[p.channel(first + lane, 0)];
        return _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(few)));
    }
};

// A line of cells from its end on, so that each is the next one moved on by a code.
void fill_cells(const Work& p, int64_t image, int64_t pixel, int64_t output, float* to) {
    const Lanes lanes(p, output);
    const __m512i zero = _mm512_set1_epi32(p.zero()), flip = _mm512_set1_epi32(p.flip());
    int64_t from = image * p.pixels_in() + pixel, left = p.at().padding[2], size = p.at().size[2];
    for (int64_t low = 0; low < kPanel; low += kFloats) {
        __m512i cell = _mm512_set1_epi8(static_cast<char>(p.zero()));
        for (int64_t j = p.columns - 1; j >= 0; --j) {
            int64_t i = j - left;
            __m512i code = i < 0 || i >= size ? zero : _mm512_xor_si512(lanes.of(from + i, low), flip);
            cell = _mm512_or_si512(_mm512_slli_epi32(cell, 8), code);
            _mm512_storeu_si512(to + j * kPanel + low, cell);
        }
    }
}
#else
void fill_cells(const Work&, int64_t, int64_t, int64_t, float*) {}
#endif

// A line beyond the edges.
void fill_zeros(const Work& p, float* to) {
    const uint32_t zero = p.starts ? static_cast<uint32_t>(p.zero()) * 0x01010101u : 0;
    for (int64_t i = 0; i < p.columns * p.cell; ++i) copy<4>(to + i, &zero);
}

// The lines under the kernel, with zeros around them.
void fill_slab(const Work& p, const Band& band, int64_t first, Buffers& b) {
    const Window& w = p.at();
    int64_t bytes = p.cell * 4, size = w.size[2], left = smaller(w.padding[2], p.columns);
    int64_t right = larger(0, p.columns - left - size);
    int64_t lines = (band.count - 1) * w.stride[1] + (w.kernel[1] - 1) * w.dilation[1] + 1;
    for (int64_t a = 0; a < w.kernel[0]; ++a) {
        int64_t plane = band.place * w.stride[0] - w.padding[0] + a * w.dilation[0];
        float* to = b.slab + a * p.lines * p.columns * p.cell;
        for (int64_t i = 0; i < lines; ++i, to += p.columns * p.cell) {
            int64_t line = band.first * w.stride[1] - w.padding[1] + i;
            if (plane < 0 || plane >= w.size[0] || line < 0 || line >= w.size[1]) {
                fill_zeros(p, to);
                continue;
            }
            if (p.starts) {
                fill_cells(p, band.image, (plane * w.size[1] + line) * size, first, to);
                continue;
            }
            memset(to, 0, left * bytes);
            memset(to + (p.columns - right) * p.cell, 0, right * bytes);
            int64_t pixel = (plane * w.size[1] + line) * size;
            read_pixels(p, band.image, pixel, first, b, to + left * p.cell);
        }
    }
}

enum class Slab { shared, spread, cells };

// Four products of codes to each lane of a sum.
inline Vector add_cells(Vector sum, Vector x, Vector weight) {
#if defined(__AVX512VNNI__)  // a line of assembly, as in tile_vnni.h
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(weight));
#else
    (void)x, (void)weight;
#endif
    return sum;
}

// P pixels beside one another times as many outputs as two vectors have.
template <int P, Slab S>
void sum_pixels(const Work& p, const float* x, int64_t step, const float* weight, float* sums) {
    Vector sum[P][2] = {};
    for (int64_t i = 0; i < p.terms; ++i, weight += kPanel) {
        Vector first = load(weight), second = load(weight + kFloats);
        const float* at = x + p.offsets[i];
#pragma GCC unroll 12
        for (int r = 0; r < P; ++r) {
            if constexpr (S == Slab::cells) {
                sum[r][0] = add_cells(sum[r][0], load(at + r * step), first);
                sum[r][1] = add_cells(sum[r][1], load(at + r * step + kFloats), second);
            } else if constexpr (S == Slab::spread) {
                sum[r][0] = multiply_add(load(at + r * step), first, sum[r][0]);
                sum[r][1] = multiply_add(load(at + r * step + kFloats), second, sum[r][1]);
            } else {
                Vector number = all(at[r * step]);
                sum[r][0] = multiply_add(number, first, sum[r][0]);
                sum[r][1] = multiply_add(number, second, sum[r][1]);
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < P; ++r) {
        store(sums + r * kPanel, sum[r][0]);
        store(sums + r * kPanel + kFloats, sum[r][1]);
    }
}

using SumPixels = void (*)(const Work&, const float*, int64_t, const float*, float*);

template <Slab S>
SumPixels sum_as(int64_t pixels) {
    static constexpr SumPixels some[] = {
        sum_pixels<1, S>, sum_pixels<2, S>, sum_pixels<3, S>, sum_pixels<4, S>,
        sum_pixels<5, S>, sum_pixels<6, S>, sum_pixels<7, S>, sum_pixels<8, S>,
        sum_pixels<9, S>, sum_pixels<10, S>, sum_pixels<11, S>, sum_pixels<12, S>};
    return some[pixels - 1];
}

SumPixels sum_of(const Work& p, int64_t pixels) {
    if (p.starts) return sum_as<Slab::cells>(pixels);
    return p.spread ? sum_as<Slab::spread>(pixels) : sum_as<Slab::shared>(pixels);
}

// The band's sums [pixels][32] of one panel.
void sum_band(const Work& p, const Band& band, int64_t panel, Buffers& b) {
    const Window& w = p.at();
    const float* weight = p.weight + panel * p.terms * kPanel;
    int64_t width = w.out[2], parts = ceil_div(width, kPixels), step = w.stride[2] * p.cell;
    for (int64_t line = 0; line < band.count; ++line) {
        const float* x = b.slab + line * w.stride[1] * p.columns * p.cell;
        for (int64_t part = 0; part < parts; ++part) {
            int64_t from = part * width / parts, count = (part + 1) * width / parts - from;
            SumPixels run = sum_of(p, count);
            float* sums = b.sums + (line * width + from) * kPanel;
            for (int64_t lane = 0; lane < kPanel; lane += kLanes)
                run(p, x + from * step + (p.spread ? lane : 0), step, weight + lane, sums + lane);
        }
    }
}

// Sums of cells as they would be of codes less their zero point.
Ints whole_sums(const Work& p, int64_t output, Vector sum) {
    Ints starts;
    copy<sizeof(Ints)>(&starts, p.starts + output);
    return (Ints)sum + starts;
}

// Integers into codes or sums, which end_tile makes of them.
void shift_band(const Work& p, const Band& band, int64_t panel, Buffers& b) {
    int64_t pixels = band.pixels(p), column = panel * kPanel;
    for (int64_t i = 0; i < pixels * kPanel; i += kFloats) {
        Vector sum = load(b.sums + i);
        Ints whole = p.starts ? whole_sums(p, column + i % kPanel, sum) : __builtin_convertvector(sum, Ints);
        store(b.sums + i, (Vector)whole);
    }
    int64_t from = band.image * p.pixels() + band.pixel(p);
    end_tile(*p.out.shifts, p.n(), {reinterpret_cast<int32_t*>(b.sums.get())}, {from, pixels, column},
             p.out.y);
}

// sums * step of the weight * step of x + bias, in the order of the integer tiles.
void scale_band(const Work& p, int64_t panel, int64_t pixels, float* sums) {
    const float *steps = p.steps ? p.steps + panel * kPanel : nullptr, *bias = p.bias + panel * kPanel;
    Vector by = all(p.x->step);
    for (int64_t i = 0; i < pixels; ++i, sums += kPanel)
        for (int64_t lane = 0; lane < kPanel; lane += kFloats) {
            Vector y = load(sums + lane);
            if (p.starts) y = __builtin_convertvector(whole_sums(p, panel * kPanel + lane, y), Vector);
            if (steps) y = y * load(steps + lane);
            store(sums + lane, multiply_add(y, by, load(bias + lane)));
        }
}

void store_band(const Work& p, const Band& band, int64_t panel, Buffers& b) {
    int64_t pixels = band.pixels(p), from = band.image * p.pixels() + band.pixel(p);
    for (int64_t i = 0; i < pixels; i += kTileRows) {
        int64_t count = smaller(kTileRows, pixels - i);
        finish_tile(p.out, b.sums + i * kPanel, count);
        if (p.out.image == 0)
            store_finished(p.out, p.n(), b.sums + i * kPanel, {from + i, count, panel * kPanel});
    }
    if (p.out.image) store_finished(p.out, p.n(), b.sums, {from, pixels, panel * kPanel});
}

void find_sizes(Work& p) {
    const Window& w = p.at();
    int64_t span = (w.kernel[1] - 1) * w.dilation[1] + 1;
    p.columns = larger((w.out[2] - 1) * w.stride[2] + (w.kernel[2] - 1) * w.dilation[2] + 1,
                       w.padding[2] + w.size[2]);
    int64_t line = p.columns * p.cell;
    int64_t most = p.starts ? kNear : kSlab;
    int64_t fit = (most / (line * w.kernel[0]) - span) / w.stride[1] + 1;
    fit = smaller(fit, 2 * most / (w.out[2] * kPanel));
    p.band = smaller(w.out[1], larger(1, fit));
    p.lines = (p.band - 1) * w.stride[1] + span;
}

void find_offsets(const Work& p, int64_t* offsets) {
    const Window& w = p.at();
    int64_t inside = p.spread ? kPanel : 1, together = p.starts ? kCell : 1;
    for (int64_t a = 0; a < w.kernel[0]; ++a)
        for (int64_t b = 0; b < w.kernel[1]; ++b)
            for (int64_t c = 0; c < w.kernel[2]; c += together)
                for (int64_t i = 0; i < p.inner; ++i)
                    *offsets++ = ((a * p.lines + b * w.dilation[1]) * p.columns + c * w.dilation[2]) * p.cell +
                                 i * inside;
}

void run_band(const Work& p, const Band& band, int64_t begin, int64_t end, Buffers& b) {
    for (int64_t panel = begin; panel < end; ++panel) {
        if (p.spread || panel == begin) fill_slab(p, band, panel * kPanel, b);
        sum_band(p, band, panel, b);
        if (p.out.shifts) {
            shift_band(p, band, panel, b);
            continue;
        }
        scale_band(p, panel, band.pixels(p), b.sums);
        store_band(p, band, panel, b);
    }
}

void run_all(const Work& p, int threads) {
    const Window& w = p.at();
    int64_t bands = ceil_div(w.out[1], p.band), panels = p.spread ? p.panels() : 1;
    int64_t items = p.x->batch * w.out[0] * bands * panels;
    Lack lack;
#pragma omp parallel num_threads(startable(threads)) if (threads > 1)
    {
        FullPrecision guard;
        Later<Buffers> buffers;
        lack.carry([&] { buffers.make(p); });
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items; ++item) lack.carry([&] {
            int64_t panel = item % panels, left = item / panels, first = left % bands * p.band;
            left /= bands;
            Band band{left / w.out[0], left % w.out[0], first, smaller(p.band, w.out[1] - first)};
            run_band(p, band, panel, p.spread ? panel + 1 : p.panels(), *buffers);
        });
    }
    lack.raise();
}

Work plan_of(const FloatWeight& w, const Image& x, const Output& out) {
    Work p{};
    p.x = &x, p.w = &w, p.out = out;
    p.inner = x.window.channels / x.groups, p.each = w.grid.rows / x.groups;
    p.spread = x.groups > 1;
    p.cell = p.spread ? p.inner * kPanel : p.inner;
    p.terms = w.grid.columns;
    return p;
}

void run_packed(Work& p, const PlaneWeight& packed, int64_t* offsets, int threads) {
    int64_t outputs = p.panels() * kPanel;
    Array<float> steps(outputs), bias(outputs);
    Array<int32_t> starts(outputs);
    memset(bias, 0, outputs * 4);
    if (p.out.bias) memcpy(bias, p.out.bias, p.n() * 4);
    for (int64_t i = 0; i < outputs; ++i) {
        steps[i] = p.w->steps[smaller(i, p.n() - 1) / p.w->grid.block_rows];
        starts[i] = -p.zero() * packed.sums[i];
    }
    const Window& w = p.at();
    p.terms = w.kernel[0] * w.kernel[1] * ceil_div(w.kernel[2], kCell);
    p.weight = reinterpret_cast<const float*>(packed.codes);
    p.steps = steps, p.bias = bias, p.starts = starts;
    find_sizes(p);
    find_offsets(p, offsets);
    run_all(p, threads);
}

}  // namespace

bool direct(const FloatWeight& w, const PlaneWeight* packed, const Image& x, const Output& out, int threads) {
    constexpr int64_t kHeld = (1 << 24) / (255 * 255);  // products that float32 sums exactly
    Work p = plan_of(w, x, out);
    FullPrecision guard;
    Array<int64_t> offsets(w.grid.columns);
    p.offsets = offsets;
    if (packed) {
        run_packed(p, *packed, offsets, threads);
        return true;
    }
    Decoded decoded(w, out.bias, x.codes && one_step_each(w));
    if (!decoded.finite(w)) return false;  // times zeros beyond the edges
    if (out.shifts && (!decoded.late_steps() || p.terms > kHeld)) return false;
    find_sizes(p);
    find_offsets(p, offsets);
    p.weight = decoded.weight, p.bias = decoded.bias, p.steps = decoded.late_steps();
    run_all(p, threads);
    return true;
}

}  // namespace blockscale::BLOCKSCALE_ISA
