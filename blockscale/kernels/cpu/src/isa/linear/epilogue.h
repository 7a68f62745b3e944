// SPDX-License-Identifier: BSD-3-Clause
// What becomes of a tile's sums: activation, dtype, codes.
#pragma once

#include "../../linear.h"
#include "../primitives/pack.h"
#include "../simd/floats.h"
#include "activations.h"
#include "tile.h"
#include "turn.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Whether tiles may be written to y as they are.
inline bool is_plain(const Output& out) {
    return out.activation == Activation::none && !out.codes && !out.shifts && out.dtype == Dtype::fp32 &&
           !out.image;
}

// Whether all numbers are below a limit; NaN is not.
inline bool all_below(Vector x, Vector limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, (__m512)limit, _CMP_LT_OQ) == 0xFFFF;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, (__m256)limit, _CMP_LT_OQ)) == 255;
#elif defined(__x86_64__)
    return _mm_movemask_ps(_mm_cmplt_ps((__m128)x, (__m128)limit)) == 15;
#elif defined(__aarch64__)
    return vminvq_u32(vcltq_f32((float32x4_t)x, (float32x4_t)limit)) != 0;
#else
    Ints below = x < limit;
    return below[0] & below[1] & below[2] & below[3];
#endif
}

inline Vector rounded(Vector x) { return x + kMagic - kMagic; }  // below 2^22

// Numbers -> their codes (numerics.md, section 4).
struct Encoder {
    typedef uint8_t Bytes __attribute__((vector_size(kFloats)));

    explicit Encoder(const Codes& to)
        : low(all(to.spec->element.low - to.zero_point)),
          high(all(to.spec->element.high - to.zero_point)), by(all(to.by)),
          zero_point(to.zero_point), multiply(to.multiply) {
        // The inverse stands for the division where both give the same code: below 2^9 their
        // products differ by 3 * 2^-15 at most, and what is above is a limit anyway.
        float size = from_bits(to_bits(to.by) & INT32_MAX);
        bool invertible = size > 0x1p-100f && size < 0x1p100f && zero_point > -256 && zero_point < 512;
        inverse = all(multiply ? to.by : invertible ? 1.0f / to.by : 0.0f);
        sure = all(multiply ? 0.75f : invertible ? 0.5f - 0x1p-13f : 0.0f);
    }

    // The code less the zero point.
    Vector whole(Vector y) const {
        Vector t = y * inverse, n = rounded(t);
        if (!all_below(magnitude(t - n), sure)) {
            t = multiply ? t : y / by;
            t = (Vector)((Ints)t & (t == t));  // NaN counts as 0
            n = rounded(greatest(low, least(high, t)));
        }
        return greatest(low, least(high, n));
    }

    Bytes operator()(Vector y) const {
        return __builtin_convertvector(__builtin_convertvector(whole(y), Ints) + zero_point, Bytes);
    }

    Vector low, high, by, inverse, sure;  // sure: how far from an integer t may be
    int32_t zero_point;
    bool multiply;
};

// Rows of a tile [count][32] whose first is `row`, from `column` on.
struct Place {
    int64_t row, count, column;
};

void store_codes(const Codes& to, int64_t n, const float* tile, Place at, uint8_t* y) {
    int bits = to.spec->element.bits;
    int64_t row_bytes = to.spec->row_bytes(n), size = smaller(kPanel, n - at.column);
    uint8_t mask = (1 << bits) - 1;
    Encoder encode(to);
    y += at.row * row_bytes + at.column * bits / 8;  // 32 codes are whole bytes
    for (int64_t r = 0; r < at.count; ++r, y += row_bytes) {
        alignas(64) uint8_t codes[kPanel + 64], packed[kPanel + 64];
        for (int i = 0; i < kPanel; i += kFloats) {
            Encoder::Bytes bytes = encode(load(tile + r * kPanel + i));
            copy<kFloats>(codes + i, &bytes);
        }
        if (bits == 8) {
            if (size == kPanel) {
                copy<kPanel>(y, codes);
            } else {
                memcpy(y, codes, size);
            }
            continue;
        }
        for (int64_t i = 0; i < size; ++i) codes[i] &= mask;
        pack_bytes(bits, codes, size, packed);
        memcpy(y, packed, ceil_div(size * bits, 8));
    }
}

// Numbers as a dtype has them, in place.
void round_to(Dtype dtype, float* x, int64_t n) {
    if (dtype == Dtype::fp32) return;
    uint16_t narrowed[kTileRows * kPanel];
    narrow(x, dtype, n, narrowed);
    widen(narrowed, dtype, 0, n, x);
}

// The same with the rows of an image beside one another, for each output.
void store_channels_first(const Output& out, int64_t n, const float* tile, Place at) {
    constexpr int64_t kMost = 64;
    alignas(64) float columns[kPanel * kMost];
    const float* rows[kMost];
    int64_t size = smaller(kPanel, n - at.column);
    for (int64_t i = 0, count; i < at.count; i += count) {
        int64_t image = (at.row + i) / out.image, pixel = (at.row + i) % out.image;
        count = smaller(kMost, smaller(at.count - i, out.image - pixel));
        for (int64_t j = 0; j < count; ++j) rows[j] = tile + (i + j) * kPanel;
        int64_t to = (image * n + at.column) * out.image + pixel;
        if (out.dtype == Dtype::fp32) {
            turn(rows, count, size, static_cast<float*>(out.y) + to, out.image);
            continue;
        }
        turn(rows, count, size, columns, kMost);
        for (int64_t c = 0; c < size; ++c)
            narrow(columns + c * kMost, out.dtype, count,
                   static_cast<uint16_t*>(out.y) + to + c * out.image);
    }
}

// What follows the sums of up to kTileRows rows. The activation takes and gives numbers of the result's
// dtype, as an op of its own would.
void finish_tile(const Output& out, float* tile, int64_t count) {
    if (out.codes || out.activation != Activation::none) round_to(out.dtype, tile, count * kPanel);
    if (out.activation == Activation::none) return;
    activate_whole(out.activation, tile, count * kPanel);
    if (out.codes) round_to(out.dtype, tile, count * kPanel);
}

void store_finished(const Output& out, int64_t n, const float* tile, Place at) {
    if (out.image) return store_channels_first(out, n, tile, at);
    if (out.codes) return store_codes(*out.codes, n, tile, at, static_cast<uint8_t*>(out.y));
    int64_t bytes = dtype_bytes(out.dtype), size = smaller(kPanel, n - at.column);
    for (int64_t r = 0; r < at.count; ++r) {
        const float* from = tile + r * kPanel;
        char* y = static_cast<char*>(out.y) + ((at.row + r) * n + at.column) * bytes;
        if (out.dtype == Dtype::fp32) {
            memcpy(y, from, size * 4);
        } else {
            narrow(from, out.dtype, size, reinterpret_cast<uint16_t*>(y));
        }
    }
}

// The panel's rows of a tile where they do not lie in y as they are.
void store_tile(const Output& out, int64_t n, float* tile, Place at) {
    finish_tile(out, tile, at.count);
    store_finished(out, n, tile, at);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
