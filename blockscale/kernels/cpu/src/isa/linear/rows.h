// SPDX-License-Identifier: BSD-3-Clause
// Rows of x -> the codes, steps and sums that tiles read.
#pragma once

#include "../simd/array.h"
#include "../simd/floats.h"
#include "work.h"

namespace blockscale::BLOCKSCALE_ISA {

const Primitives& primitives();

namespace {

// The places of a convolution: of each cell of the kernel `bytes` from x, or `pad` beyond its edges.
void gather(const Window& w, int64_t row, const void* x, int64_t bytes, const char* pad, char* to) {
    int64_t at[3], left = row;
    for (int i = 2; i >= 0; --i) {
        at[i] = left % w.out[i] * w.stride[i] - w.padding[i];
        left /= w.out[i];
    }
    const char* from = static_cast<const char*>(x);
    int64_t line = w.kernel[2] * bytes, last = at[2] + (w.kernel[2] - 1) * w.dilation[2];
    bool whole = w.dilation[2] == 1 && at[2] >= 0 && last < w.size[2];  // lines lie as they are
    for (int64_t a = at[0], i = 0; i < w.kernel[0]; ++i, a += w.dilation[0])
        for (int64_t b = at[1], j = 0; j < w.kernel[1]; ++j, b += w.dilation[1], to += line) {
            bool inside = a >= 0 && a < w.size[0] && b >= 0 && b < w.size[1];
            int64_t pixel = ((left * w.size[0] + a) * w.size[1] + b) * w.size[2];
            if (inside && whole) {
                memcpy(to, from + (pixel + at[2]) * bytes, line);
                continue;
            }
            for (int64_t c = at[2], l = 0; l < w.kernel[2]; ++l, c += w.dilation[2]) {
                bool there = inside && c >= 0 && c < w.size[2];
                memcpy(to + l * bytes, there ? from + (pixel + c) * bytes : pad, bytes);
            }
        }
}

struct RowBuffers {
    explicit RowBuffers(const Work& p)
        : patterns(p.tile_rows * p.w->k), scale(p.tile_rows * p.x_blocks),
          zero_points(p.tile_rows * p.x_blocks), pad(p.in.window ? p.in.window->channels : 1),
          steps_pad(p.x_blocks) {
        const Element& e = p.in.spec->element;
        int32_t zero = p.in.block == 0 && p.in.zero_point ? p.in.zero_point[0] : 0;
        if (p.in.window) memset(pad, zero & ((1 << e.bits) - 1), p.in.window->channels);
        memset(steps_pad, 0, p.x_blocks * 4);
    }

    Array<uint8_t> patterns;
    Array<float> scale;
    Array<int32_t> zero_points;
    Array<uint8_t> pad;      // codes of 0
    Array<float> steps_pad;  // of zeros, and their zero points
};

// x [count rows] of numbers -> patterns, with the steps and zero points of its blocks.
void quantize_rows(const Work& p, int64_t row, int64_t count, RowBuffers& buffers, float* steps) {
    const Spec& spec = *p.in.spec;
    const char* x = static_cast<const char*>(p.in.x) + row * p.w->k * dtype_bytes(p.in.dtype);
    if (p.in.block == 0) {
        Layout all{one_block(count * p.w->k), kNoBlocks};
        QParams given{const_cast<void*>(p.in.scale), nullptr,
                      const_cast<int32_t*>(p.in.zero_point), nullptr};
        primitives().quantize(spec, all, x, p.in.dtype, given, buffers.patterns, false, {}, 1);
        return;
    }
    Layout each{{.planes = 1, .rows = count, .columns = p.w->k,
                 .block_planes = 1, .block_rows = 1, .block_columns = p.in.block}, kNoBlocks};
    QParams chosen{buffers.scale.get(), nullptr, buffers.zero_points.get(), nullptr};
    primitives().choose_quantize(spec, each, x, p.in.dtype, chosen, buffers.patterns, false, {}, 1);
    primitives().steps(spec, each, chosen, steps);
}

// The same of codes. What is returned lies in the buffers or in x.
const uint8_t* read_rows(const Work& p, int64_t row, int64_t count, RowBuffers& buffers,
                         float* steps) {
    int64_t k = p.w->k, bits = p.in.spec->element.bits;
    const uint8_t* x = static_cast<const uint8_t*>(p.in.x);
    if (const Window* w = p.in.window) {
        int64_t blocks = p.x_blocks / w->cells();
        const char* zeros = reinterpret_cast<char*>(buffers.steps_pad.get());
        const char* pad = reinterpret_cast<char*>(buffers.pad.get());
        for (int64_t r = 0; r < count; ++r) {
            gather(*w, row + r, x, w->channels, pad,
                   reinterpret_cast<char*>(buffers.patterns.get() + r * k));
            if (p.in.block == 0) continue;
            gather(*w, row + r, p.sums.steps, blocks * 4, zeros,
                   reinterpret_cast<char*>(steps + r * p.x_blocks));
            if (p.in.zero_point)
                gather(*w, row + r, p.in.zero_point, blocks * 4, zeros,
                       reinterpret_cast<char*>(buffers.zero_points.get() + r * p.x_blocks));
        }
        return buffers.patterns;
    }
    if (p.in.block) {
        int64_t first = row * p.x_blocks, n = count * p.x_blocks * 4;
        memcpy(steps, p.sums.steps + first, n);
        if (p.in.zero_point) memcpy(buffers.zero_points, p.in.zero_point + first, n);
    }
    if (bits == 8) return x + row * k;
    x += row * p.in.spec->row_bytes(k);
    primitives().unpack(bits, x, count, k, buffers.patterns, 1);
    return buffers.patterns;
}

// Unsigned codes of 8 bits lose half of their range, so that they are signed: so do zero points.
bool moves(const Element& e) { return !e.is_signed && e.bits == 8; }

// Patterns -> signed codes; in the buffer, if they are others.
const int8_t* signed_codes(const Element& e, const uint8_t* patterns, int64_t n, uint8_t* buffer) {
    if (moves(e)) {
        for (int64_t i = 0; i < n; ++i) buffer[i] = patterns[i] ^ 0x80;
    } else if (e.bits == 8 || !e.is_signed) {
        return reinterpret_cast<const int8_t*>(patterns);
    } else {
        int shift = 8 - e.bits;
        for (int64_t i = 0; i < n; ++i)
            buffer[i] = static_cast<int8_t>(patterns[i] << shift) >> shift;
    }
    return reinterpret_cast<const int8_t*>(buffer);
}

// What the sums of the weight are multiplied by: minus the zero point of those signed codes.
int32_t shift_of_zero(const Element& e, int32_t zero_point) {
    return (moves(e) ? 128 : 0) - zero_point;
}

int32_t sum_of(const int8_t* codes, int64_t n) {
    int64_t i = 0;
    int32_t sum = 0;
#if defined(__AVX512VNNI__)
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i parts[4] = {};  // one would wait for itself
    for (; i + 256 <= n; i += 256)
        for (int j = 0; j < 4; ++j)
            parts[j] = _mm512_dpbusd_epi32(parts[j], ones, _mm512_loadu_si512(codes + i + 64 * j));
    __m512i sums = _mm512_add_epi32(_mm512_add_epi32(parts[0], parts[1]),
                                    _mm512_add_epi32(parts[2], parts[3]));
    for (; i + 64 <= n; i += 64)
        sums = _mm512_dpbusd_epi32(sums, ones, _mm512_loadu_si512(codes + i));
    if (i < n) {
        __m512i rest = _mm512_maskz_loadu_epi8((uint64_t{1} << (n - i)) - 1, codes + i);
        sums = _mm512_dpbusd_epi32(sums, ones, rest);
        i = n;
    }
    sum = _mm512_reduce_add_epi32(sums);
#endif
    for (; i < n; ++i) sum += codes[i];
    return sum;
}

// The codes of one row into its places in a tile of `count` rows, `depth` of them together.
void place_deep(const int8_t* codes, int64_t n, int64_t count, int64_t depth, Code* to) {
    int64_t whole = n / depth, left = n - whole * depth;
    for (int64_t i = 0; i < whole; ++i) memcpy(to + i * count * depth, codes + i * depth, depth);
    if (left == 0) return;
    memset(to + whole * count * depth, 0, depth);
    memcpy(to + whole * count * depth, codes + whole * depth, left);
}

// The same of chunks.
void place(const int8_t* codes, int64_t n, int64_t count, Code* to) {
    int64_t whole = n / kCodes, stride = count * kCodes;
    for (int64_t chunk = 0; chunk < whole; ++chunk)
        for (int64_t i = 0; i < kCodes; ++i)
            to[chunk * stride + i] = codes[chunk * kCodes + i];
    if (whole * kCodes == n) return;
    for (int64_t i = 0; i < kCodes; ++i)
        to[whole * stride + i] = whole * kCodes + i < n ? codes[whole * kCodes + i] : 0;
}

// Quantizes rows of one tile, or reads them, and lays them out: `count` of the `side` rows that lie there.
void prepare_rows(const Work& p, int64_t from, int64_t count, int64_t side, RowBuffers& buffers,
                  Quantized to) {
    const Element& e = p.in.spec->element;
    int64_t k = p.w->k, scales = count * p.x_blocks;
    const uint8_t* patterns = buffers.patterns;
    if (p.in.codes) {
        patterns = read_rows(p, p.first + from, count, buffers, to.x_scales);
    } else {
        quantize_rows(p, p.first + from, count, buffers, to.x_scales);
    }
    for (int64_t i = 0; p.in.block == 0 && i < scales; ++i) to.x_scales[i] = p.x_step;
    bool each = p.in.block && p.in.spec->asym;
    for (int64_t i = 0; to.shifts && i < scales; ++i)
        to.shifts[i] = p.in.block == 0 ? p.x_shift
                                       : shift_of_zero(e, each ? buffers.zero_points[i] : 0);
    const int8_t* all = signed_codes(e, patterns, count * k, buffers.patterns);
    uint32_t factor = p.w->zeros ? -1 : -static_cast<uint32_t>(p.w->offset());  // products may wrap
    for (int64_t row = 0; row < count; ++row) {
        const int8_t* codes = all + row * k;
        int32_t* starts = to.starts + row * p.blocks;
        for (int64_t block = 0; !p.centred() && block < p.blocks; ++block) {
            int64_t at = block * p.block, n = smaller(p.block, k - at);
            starts[block] = static_cast<int32_t>(static_cast<uint32_t>(sum_of(codes + at, n)) * factor);
        }
        if (p.depth) {
            place_deep(codes, k, side, p.depth, to.codes + row * p.depth);
        } else {
            place(codes, k, side, to.codes + row * kCodes);
        }
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
