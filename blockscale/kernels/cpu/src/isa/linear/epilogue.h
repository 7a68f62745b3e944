// What becomes of a tile's sums: activation, dtype, codes.
#pragma once

#include "../../linear.h"
#include "../primitives/pack.h"
#include "../simd/floats.h"
#include "activations.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Whether tiles may be written to y as they are.
inline bool is_plain(const Output& out) {
    return out.activation == Activation::none && !out.codes && out.dtype == Dtype::fp32;
}

// y counted in steps. A multiplication by the step's inverse stands for the division wherever both are
// rounded to the same integer; 0: it may not.
inline Vector in_steps(const Codes& to, Vector y, Vector by, float inverse) {
#if defined(__AVX512F__)
    if (inverse != 0.0f) {
        __m512 t = (__m512)(y * inverse);
        __m512 beyond = _mm512_sub_ps(t, _mm512_roundscale_ps(t, 0));
        __m512 from_tie = _mm512_sub_ps(_mm512_set1_ps(0.5f), _mm512_abs_ps(beyond));
        // Below 2^9, t is off by 3 * 2^-15 at most; what is above is a limit anyway.
        __mmask16 sure = _mm512_cmp_ps_mask(_mm512_abs_ps(from_tie), _mm512_set1_ps(0x1p-13f),
                                            _CMP_GT_OQ);
        return sure == 0xFFFF ? (Vector)t : y / by;  // NaN is not sure
    }
#else
    (void)inverse;
#endif
    return to.multiply ? y * by : y / by;
}

// Numbers [32] -> their codes (numerics.md, section 4), one a byte.
inline void encode_panel(const Codes& to, const float* y, uint8_t* codes) {
    typedef uint8_t Bytes __attribute__((vector_size(kFloats)));
    const Element& e = to.spec->element;
    float zero = static_cast<float>(to.zero_point);
    Vector low = all(e.low - zero), high = all(e.high - zero), by = all(to.by);
    float size = from_bits(to_bits(to.by) & INT32_MAX);
    bool invertible = !to.multiply && size > 0x1p-100f && size < 0x1p100f &&
                      to.zero_point > -256 && to.zero_point < 512;  // so |limits| < 2^9
    float inverse = invertible ? 1.0f / to.by : 0.0f;
    for (int i = 0; i < kPanel; i += kFloats) {
        Vector t = in_steps(to, load(y + i), by, inverse);
        t = (Vector)((Ints)t & (t == t));  // NaN counts as 0
        t = greatest(low, least(high, t));
        Ints code = (Ints)(t + kMagic) - (Ints)all(kMagic) + to.zero_point;
        Bytes bytes = __builtin_convertvector(code, Bytes);
        memcpy(codes + i, &bytes, kFloats);
    }
}

// Rows of a tile [count][32] whose first is `row`, from `column` on.
struct Place {
    int64_t row, count, column;
};

void store_codes(const Codes& to, int64_t n, const float* tile, Place at, uint8_t* y) {
    int bits = to.spec->element.bits;
    int64_t row_bytes = to.spec->row_bytes(n), size = smaller(kPanel, n - at.column);
    uint8_t mask = (1 << bits) - 1;
    y += at.row * row_bytes + at.column * bits / 8;  // 32 codes are whole bytes
    for (int64_t r = 0; r < at.count; ++r, y += row_bytes) {
        alignas(64) uint8_t codes[kPanel + 64], packed[kPanel + 64];
        encode_panel(to, tile + r * kPanel, codes);
        if (bits == 8) {
            memcpy(y, codes, size);
            continue;
        }
        for (int64_t i = 0; i < size; ++i) codes[i] &= mask;
        pack_bytes(bits, codes, size, packed);
        memcpy(y, packed, ceil_div(size * bits, 8));
    }
}

// The panel's rows of a tile where they do not lie in y as they are.
void store_tile(const Output& out, int64_t n, float* tile, Place at) {
    activate_whole(out.activation, tile, at.count * kPanel);
    if (out.codes && out.dtype == Dtype::fp32)
        return store_codes(*out.codes, n, tile, at, static_cast<uint8_t*>(out.y));
    int64_t bytes = dtype_bytes(out.dtype), size = smaller(kPanel, n - at.column);
    for (int64_t r = 0; r < at.count; ++r) {
        float* from = tile + r * kPanel;
        if (out.codes) {  // of numbers as their dtype has them
            uint16_t narrowed[kPanel];
            narrow(from, out.dtype, kPanel, narrowed);
            widen(narrowed, out.dtype, 0, kPanel, from);
            continue;
        }
        char* y = static_cast<char*>(out.y) + ((at.row + r) * n + at.column) * bytes;
        if (out.dtype == Dtype::fp32) {
            memcpy(y, from, size * 4);
        } else {
            narrow(from, out.dtype, size, reinterpret_cast<uint16_t*>(y));
        }
    }
    if (out.codes) store_codes(*out.codes, n, tile, at, static_cast<uint8_t*>(out.y));
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
