// SPDX-License-Identifier: BSD-3-Clause
// The slab of a convolution of planes (planes.cpp): x, as numbers or as codes, in cells of four bytes.
#pragma once

#include "../simd/array.h"
#include "epilogue.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kSlab = 48 << 10;  // cells of 4 bytes: of the second-level cache
constexpr int64_t kLine = 16;         // the same, of a line of the cache
constexpr int64_t kCell = 4;         // codes
constexpr int kWide = 4;  // vectors of pixels beside one another, at most

struct Work {
    const Image* x;
    const Spec* spec;  // of the weight
    Window at;  // pixels that see no others lie in one line
    Output out;
    const float* weight;    // [panels][terms][32] cells
    const float* steps;     // [panels * 32], or null
    const float* bias;      // [panels * 32]
    const int32_t* starts;  // the same: what sums of codes begin with; null: numbers
    int64_t n, inner, each;  // outputs; channels that one sees, outputs of a group
    int64_t depth, terms;    // cells of a pixel, and under the kernel
    int64_t columns, band;   // of the result at a time
    int64_t pitch, phase, lines;  // of the slab: cells of a line and of each part of it; lines
    bool beside;             // a cell is four neighbours of a line of the one channel, not four channels
    int32_t move;            // less the lowest code
    const int64_t* offsets;  // [terms], in the slab
    bool alone;              // pixels see no others

    int64_t pixels_in() const { return at.size[0] * at.size[1] * at.size[2]; }
    int64_t pixels() const { return at.out[0] * at.out[1] * at.out[2]; }
};

// A part of the result: `count` lines from `first` on, and `columns` from `column` on.
struct Band {
    int64_t image, group, place, first, count, column, columns;
};

// Cells of zeros of x.
void zeros(const Work& p, float* to, int64_t count) {
    const uint32_t zero = p.starts ? static_cast<uint32_t>(p.move) * 0x01010101u : 0;
    for (int64_t i = 0; i < count; ++i) copy<4>(to + i, &zero);
}

struct Buffers {
    explicit Buffers(const Work& p)
        : memory(slab_size(p) + kLine), line(most_cells(p)), wide(kCell * most_read(p)),
          codes(most_cells(p) + p.lines * kBetween), encode(p.x->by ? *p.x->by : Codes{p.spec, 1.0f, false, 0}) {
        slab = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) & ~uintptr_t{63});
        if (!p.alone || !p.starts) zeros(p, slab, slab_size(p));  // junk may be slow in float32
    }

    static int64_t slab_size(const Work& p) {
        int64_t behind = 8 * p.at.stride[1] * p.pitch + kWide * kFloats;  // tiles may reach beyond the last line
        return p.depth * p.at.kernel[0] * p.lines * p.pitch + behind;
    }

    static int64_t most_read(const Work& p) { return larger(p.columns, p.lines * p.at.size[2]) + 4 * kFloats; }

    static int64_t most_cells(const Work& p) {
        return larger(p.columns, p.lines * (p.at.size[2] + p.at.padding[2])) + 4 * kFloats;
    }

    Array<float> memory, line, wide;
    Array<uint8_t> codes;  // of neighbours, before they are cells
    static constexpr int64_t kBetween = 2 * kFloats;  // of their lines
    float* slab;  // in `memory`, where a line of the cache begins
    Encoder encode;
};

// Up to a vector of numbers, of which there are `count`; zeros behind them.
inline Vector some(const float* x, int64_t count) {
    if (count >= kFloats) return load(x);
#if defined(__AVX512F__)
    return (Vector)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << count) - 1), x);
#else
    float few[kFloats] = {};
    memcpy(few, x, count * 4);
    return load(few);
#endif
}

inline void put(float* to, Vector y, int64_t count) {
    if (count >= kFloats) return store(to, y);
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1 << count) - 1), (__m512)y);
#else
    memcpy(to, &y, count * 4);
#endif
}

// Numbers of x that are read together: lines of a channel, from its pixel `from` on.
struct Lines {
    int64_t channel, from, count, columns;
};

// They, or their codes less the zero point, a cell each, into lines that lie so far apart.
void read_numbers(const Work& p, const Lines& lines, Buffers& b, float* to, int64_t pitch) {
    const Encoder encode = b.encode;
    const bool by = p.x->by;
    int64_t n = lines.columns, first = lines.channel * p.pixels_in() + lines.from;
    for (int64_t line = 0; line < lines.count; ++line, first += n, to += pitch) {
        const float* x = widen(p.x->x, p.x->dtype, first, n, b.wide);
        for (int64_t i = 0; i < n; i += kFloats) {
            Vector y = some(x + i, n - i);
            put(to + i, by ? encode.whole(y) : y, n - i);
        }
    }
}

// The codes of up to four channels beside one another.
void read_codes(const Work& p, const Lines& lines, int64_t channels, Buffers& b, float* to, int64_t pitch) {
    const Encoder encode = b.encode;
    const bool fetches = p.x->dtype == Dtype::fp32;
    int64_t n = lines.columns, pixels = p.pixels_in(), first = lines.channel * pixels + lines.from;
    for (int64_t line = 0; line < lines.count; ++line, first += n, to += pitch) {
        const float* x[kCell];
        for (int64_t c = 0; c < channels; ++c)
            x[c] = widen(p.x->x, p.x->dtype, first + c * pixels, n, b.wide + c * Buffers::most_read(p));
        for (int64_t i = 0; i < n; i += kFloats) {
            Ints cells{};
            for (int64_t c = 0; c < channels; ++c) {
                if (fetches) __builtin_prefetch(x[c] + kCell * pixels + i);
                Vector whole = encode.whole(some(x[c] + i, n - i));
                cells |= (__builtin_convertvector(whole, Ints) + p.move) << static_cast<int>(8 * c);
            }
            put(to + i, (Vector)cells, n - i);
        }
    }
}

#if defined(__AVX512VNNI__)
// Bytes i to i + 3 of 19 for each i below 16.
inline __m512i neighbours(const uint8_t* bytes) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4);
    const __m512i each = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6));
    __m512i wide = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, wide), each);
}

// The codes of a channel's neighbours, from the first beyond the left edge on. All lines become codes first: a
// load of what several stores have just written waits for them.
void read_neighbours(const Work& p, const Lines& lines, Buffers& b, float* to, int64_t pitch) {
    const Encoder encode = b.encode;
    const __m128i zeros = _mm_set1_epi8(static_cast<char>(p.move));
    int64_t n = lines.columns, left = p.at.padding[2], all = left + n, line_codes = all + Buffers::kBetween;
    int64_t first = lines.channel * p.pixels_in() + lines.from;
    uint8_t* codes = b.codes;
    for (int64_t line = 0; line < lines.count; ++line, first += n, codes += line_codes) {
        const float* x = widen(p.x->x, p.x->dtype, first, n, b.wide);
        for (int64_t i = 0; i < left; i += kFloats) _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), zeros);
        for (int64_t i = 0; i < n; i += kFloats) {
            Vector whole = encode.whole(some(x + i, n - i));
            __m512i each = (__m512i)(__builtin_convertvector(whole, Ints) + p.move);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + left + i), _mm512_cvtepi32_epi8(each));
        }
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + all), zeros);
    }
    codes = b.codes;
    for (int64_t line = 0; line < lines.count; ++line, to += pitch, codes += line_codes)
        for (int64_t j = 0; j < all; j += kFloats) put(to + j, (Vector)neighbours(codes + j), all - j);
}
#else
void read_neighbours(const Work&, const Lines&, Buffers&, float*, int64_t) {}
#endif

// Every second of n numbers, from the first on.
void halve(const float* from, int64_t n, float* to) {
    int64_t half = ceil_div(n, 2), j = 0;
#if defined(__AVX512F__)
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for (; j < half; j += kFloats) {
        __m512 low = (__m512)some(from + 2 * j, n - 2 * j);
        __m512 high = n - 2 * j > kFloats ? (__m512)some(from + 2 * j + kFloats, n - 2 * j - kFloats) : low;
        put(to + j, (Vector)_mm512_permutex2var_ps(low, even, high), half - j);
    }
#endif
    for (; j < half; ++j) to[j] = from[2 * j];
}

// Cells of `lines` lines of x into those of the slab, from cell `left` of each on. Of steps along a line each
// has a part of its own, so that neighbours of the result are neighbours there.
void split_lines(const Work& p, const float* cells, int64_t lines, int64_t count, int64_t left, float* to) {
    int64_t steps = p.at.stride[2];
    for (int64_t first = 0; first < smaller(steps, count); ++first) {
        float* part = to + (left + first) % steps * p.phase + (left + first) / steps;
        const float* from = cells + first;
        for (int64_t line = 0; line < lines; ++line, from += count, part += p.pitch) {
            int64_t n = count - first;
            if (steps == 2) {
                halve(from, n, part);
                continue;
            }
            for (int64_t i = 0, j = 0; i < n; i += steps, ++j) part[j] = from[i];
        }
    }
}

// What lies beyond the edges of x keeps what the buffers began with; other lines may have been x's.
void fill_plane(const Work& p, const Band& band, int64_t cell, int64_t plane, Buffers& b, float* to) {
    const Window& w = p.at;
    int64_t first = band.first * w.stride[1] - w.padding[1];
    int64_t lines = (band.count - 1) * w.stride[1] + (w.kernel[1] - 1) * w.dilation[1] + 1;
    int64_t low = smaller(lines, larger(0, -first)), high = larger(low, smaller(lines, w.size[1] - first));
    if (plane < 0 || plane >= w.size[0]) low = high = lines;
    zeros(p, to, low * p.pitch);
    zeros(p, to + high * p.pitch, (lines - high) * p.pitch);
    if (low == high) return;
    Lines read{(band.image * p.x->groups + band.group) * p.inner,
               (plane * w.size[1] + first + low) * w.size[2] + band.column, high - low,
               p.alone ? band.columns : w.size[2]};
    const bool whole = w.stride[2] == 1;
    const int64_t left = p.beside ? 0 : w.padding[2];  // what begins beyond it is in cells of neighbours
    float *lines_to = to + low * p.pitch, *cells = whole ? lines_to + left : b.line.get();
    int64_t count = read.columns + w.padding[2] - left, pitch = whole ? p.pitch : count;
    read.channel += p.starts ? cell * kCell : cell;
    if (p.beside) {
        read_neighbours(p, read, b, cells, pitch);
    } else if (p.starts) {
        read_codes(p, read, smaller(kCell, p.inner - cell * kCell), b, cells, pitch);
    } else {
        read_numbers(p, read, b, cells, pitch);
    }
    if (!whole) split_lines(p, cells, read.count, count, left, lines_to);
}

void fill_slab(const Work& p, const Band& band, Buffers& b) {
    const Window& w = p.at;
    for (int64_t cell = 0; cell < p.depth; ++cell)
        for (int64_t a = 0; a < w.kernel[0]; ++a)
            fill_plane(p, band, cell, band.place * w.stride[0] - w.padding[0] + a * w.dilation[0], b,
                       b.slab + (cell * w.kernel[0] + a) * p.lines * p.pitch);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
