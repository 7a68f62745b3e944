// SPDX-License-Identifier: BSD-3-Clause
// Patterns -> the values of their codes, in units of the step (numerics.md, sections 1.1 and 5).
#pragma once

#include "../simd/octaves.h"
#include "blocks.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

template <class Code>
void integers_from_codes(const Element& e, const Code* codes, const float* z, int64_t n,
                         float* __restrict values) {
    int shift = e.is_signed ? 32 - e.bits : 0;  // spreads the sign bit
    if (z) {
        for (int64_t i = 0; i < n; ++i) {
            int32_t code = static_cast<int32_t>(static_cast<uint32_t>(codes[i]) << shift) >> shift;
            values[i] = static_cast<float>(code) - z[i];
        }
    } else {
        for (int64_t i = 0; i < n; ++i) {
            int32_t code = static_cast<int32_t>(static_cast<uint32_t>(codes[i]) << shift) >> shift;
            values[i] = static_cast<float>(code);
        }
    }
}

inline void minifloats_from_codes(const Element& e, const uint8_t* codes, int64_t n,
                                  float* __restrict values) {
    int shift = 23 - e.mantissa_bits;
    int32_t mask = (1 << (e.bits - 1)) - 1, one = 1 << e.mantissa_bits;
    int32_t rebias = (127 - e.bias) << 23;
    int32_t smallest = (128 - e.bias) << 23;  // 2^(1 - bias), which subnormals lack
    int32_t largest = e.max_code, infinity = e.infinity_code;
    for (int64_t i = 0; i < n; ++i) {
        int32_t code = codes[i] & mask;
        bool subnormal = code < one;
        // A subnormal takes the exponent of the smallest normal number, whose 1 is taken off again:
        // no operand of this is a float32 subnormal, which some processors handle slowly.
        int32_t bits = (code << shift) + rebias + (subnormal ? 1 << 23 : 0);
        float value = from_bits(bits) - (subnormal ? from_bits(smallest) : 0.0f);
        value = code > largest ? from_bits(0x7FC00000) : value;
        value = code == infinity ? from_bits(kInfinity) : value;
        int32_t sign = static_cast<int32_t>(static_cast<uint32_t>(codes[i]) << (32 - e.bits)) &
                       INT32_MIN;
        values[i] = from_bits(to_bits(value) | sign);
    }
}

inline void signs_from_codes(const uint8_t* codes, int64_t n, float* __restrict values) {
    for (int64_t i = 0; i < n; ++i) values[i] = codes[i] & 1 ? 1.0f : -1.0f;
}

inline void places_from_codes(const Codebook& book, const uint8_t* codes, int64_t n,
                              float* __restrict values) {
    if (book.octaves.serve) return octaves_from_codes(book.octaves, codes, n, values);
    for (int64_t i = 0; i < n; ++i) values[i] = book.values[codes[i]];
}

// patterns [n] of spec.code_bytes() -> code - z [n].
inline void decode(const Spec& spec, const void* codes, const float* z, int64_t n, float* values) {
    const Element& e = spec.element;
    const uint8_t* bytes = static_cast<const uint8_t*>(codes);
    switch (e.family) {
        case Family::minifloat: return minifloats_from_codes(e, bytes, n, values);
        case Family::binary: return signs_from_codes(bytes, n, values);
        case Family::codebook: return places_from_codes(*e.book, bytes, n, values);
        case Family::integer:
            if (e.bits <= 8) return integers_from_codes(e, bytes, z, n, values);
            return integers_from_codes(e, static_cast<const uint16_t*>(codes), z, n, values);
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
