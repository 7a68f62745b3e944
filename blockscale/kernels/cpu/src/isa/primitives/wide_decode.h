// SPDX-License-Identifier: BSD-3-Clause
// Patterns decoded in registers, for AVX-512. Minifloats by the float16 converter: their exponent and
// mantissa put where float16 has its own read as the value times 2^(bias - 15), subnormals included.
#pragma once

#include "../simd/table.h"
#include "decode.h"
#include "wide_table.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// Whether any of n codes is reserved (NaN or infinity), which the shift below would misread.
inline bool any_reserved(const Element& e, const uint8_t* codes, int64_t n) {
    int mask = (1 << (e.bits - 1)) - 1;
    if (e.max_code >= mask) return false;
    __m512i magnitude = _mm512_set1_epi8(static_cast<char>(mask));
    __m512i largest = _mm512_set1_epi8(static_cast<char>(e.max_code));
    __mmask64 found = 0;
    for (int64_t i = 0; i < n; i += 64) {
        __mmask64 valid = n - i >= 64 ? ~__mmask64(0) : (__mmask64(1) << (n - i)) - 1;
        __m512i code = _mm512_and_si512(_mm512_maskz_loadu_epi8(valid, codes + i), magnitude);
        found |= _mm512_cmpgt_epu8_mask(code, largest);
    }
    return found != 0;
}

// How patterns become values: `few` by a table of up to 16, `zeros` are integers with zero points.
enum class Decoding { few, integers, zeros, minifloats, octaves, places };

inline Decoding decoding_of(const Spec& spec) {
    const Element& e = spec.element;
    if (e.bits <= 4 && !spec.asym) return Decoding::few;
    if (e.family == Family::integer) return spec.asym ? Decoding::zeros : Decoding::integers;
    if (e.family == Family::minifloat) return Decoding::minifloats;
    return e.book->octaves.serve ? Decoding::octaves : Decoding::places;
}

template <Decoding HOW>
struct WideDecoder {
    explicit WideDecoder(const Spec& spec) : bits(spec.element.bits), book(spec.element.book.get()) {
        const Element& e = spec.element;
        magnitude = _mm256_set1_epi16((1 << (bits - 1)) - 1);
        left = _mm_cvtsi32_si128(10 - e.mantissa_bits);
        sign_left = _mm_cvtsi32_si128(HOW == Decoding::octaves ? 32 - bits : 16 - bits);
        rebias = _mm512_set1_ps(from_bits((127 + 15 - e.bias) << 23));
        drop = _mm_cvtsi32_si128(e.is_signed ? 32 - bits : 0);
        whole_bytes = bits == 8 && e.is_signed;
        if constexpr (HOW == Decoding::few) {
            alignas(64) float values[16] = {};
            uint8_t patterns[16];
            for (int i = 0; i < 16; ++i) patterns[i] = i;
            decode(spec, patterns, nullptr, 1 << bits, values);
            table = _mm512_load_ps(values);
        }
        if constexpr (HOW == Decoding::octaves) {
            const Octaves& o = book->octaves;
            base = _mm512_set1_epi32(o.base), last = _mm512_set1_epi32(o.last);
            mantissas = _mm512_load_si512(o.mantissas), shift = _mm_cvtsi32_si128(o.shift);
        }
    }

    BLOCKSCALE_INLINE __m512 operator()(const uint8_t* codes, int64_t i, __mmask16 mask,
                                        const Lanes& lanes) const {
        const __m128i* from = reinterpret_cast<const __m128i*>(codes + i);
        __m128i bytes = mask == 0xFFFF ? _mm_loadu_si128(from) : _mm_maskz_loadu_epi8(mask, from);
        if constexpr (HOW == Decoding::zeros) return _mm512_sub_ps(whole(bytes), lanes.zero);
        if constexpr (HOW == Decoding::integers) return whole(bytes);
        if constexpr (HOW == Decoding::few)
            return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(bytes), table);
        if constexpr (HOW == Decoding::places)
            return _mm512_castsi512_ps(look_up(book->values, bits, _mm512_cvtepu8_epi32(bytes)));
        if constexpr (HOW == Decoding::octaves) {
            __m512i code = _mm512_cvtepu8_epi32(bytes);
            __m512i value = WideOctaves::bits_of(_mm512_and_si512(code, last), base, mantissas, shift);
            value = _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(code, last), value);
            return with_sign_of(_mm512_castsi512_ps(value),
                                _mm512_castsi512_ps(_mm512_sll_epi32(code, sign_left)));
        }
        __m256i code = _mm256_cvtepu8_epi16(bytes);
        __m256i half = _mm256_sll_epi16(_mm256_and_si256(code, magnitude), left);
        __m256i sign = _mm256_sll_epi16(code, sign_left);  // the bit arrives at 15, others above are cut
        half = _mm256_ternarylogic_epi32(half, sign, _mm256_set1_epi16(INT16_MIN), 0xF8);
        return _mm512_mul_ps(_mm512_cvtph_ps(half), rebias);
    }

    BLOCKSCALE_INLINE __m512 whole(__m128i bytes) const {
        if (whole_bytes) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
        __m512i wide = _mm512_cvtepu8_epi32(bytes);
        return _mm512_cvtepi32_ps(_mm512_sra_epi32(_mm512_sll_epi32(wide, drop), drop));
    }

    int bits;
    const Codebook* book;
    __m256i magnitude;
    __m128i left, sign_left, drop, shift;
    __m512 rebias, table;
    __m512i base, last, mantissas;
    bool whole_bytes;
};

// Whether WideDecoder serves n patterns of blocks of `size`, from `column` on.
inline bool wide_decodes(const Spec& spec, int64_t column, int64_t size, const uint8_t* codes,
                         int64_t n) {
    const Element& e = spec.element;
    if (size < 16 && size != 1 && (size != 8 || column % 8)) return false;
    if (e.bits <= 4 && !spec.asym) return true;
    switch (e.family) {
        case Family::integer: return e.bits <= 8;
        // In a float16 the largest exponent means infinity or NaN, in an element perhaps a number.
        case Family::minifloat:
            return e.mantissa_bits >= 1 && e.bias <= 15 && e.max_code >> e.mantissa_bits < 31 &&
                   !any_reserved(e, codes, n);
        case Family::codebook: return true;
        case Family::binary: return false;  // of one bit: the table above serves it
    }
    __builtin_unreachable();
}

// MOVED: there are offsets. stream: see stream16.
template <Dtype D, Decoding HOW, bool MOVED>
void decode_loop(const Spec& spec, const LaneSource source, const uint8_t* codes, int64_t column,
                 int64_t n, int64_t size, bool stream, void* to) {
    const WideDecoder<HOW> decode(spec);
    auto quad = [&]<bool ALIKE>(int64_t i, auto lanes_at) BLOCKSCALE_INLINE_LAMBDA {
        __m512 y[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            Lanes lanes = lanes_at(j);
            y[j] = from_steps(decode(codes, i + 16 * j, 0xFFFF, lanes), lanes, MOVED);
        }
        store64<D>(to, i, y, stream, false);
    };
    auto rest = [&](int64_t i, __mmask16 mask, Lanes lanes) BLOCKSCALE_INLINE_LAMBDA {
        store16<D>(to, i, mask, from_steps(decode(codes, i, mask, lanes), lanes, MOVED));
    };
    for_quads(source, column, n, size, quad, rest);
}

// Run f with how patterns become values as a constant.
template <class F>
inline void with_decoding(Decoding how, F f) {
    switch (how) {
        case Decoding::few: return f.template operator()<Decoding::few>();
        case Decoding::integers: return f.template operator()<Decoding::integers>();
        case Decoding::zeros: return f.template operator()<Decoding::zeros>();
        case Decoding::minifloats: return f.template operator()<Decoding::minifloats>();
        case Decoding::octaves: return f.template operator()<Decoding::octaves>();
        case Decoding::places: return f.template operator()<Decoding::places>();
    }
}

// Patterns [n] times their steps into `to` [n].
inline void wide_decode(const Spec& spec, const uint8_t* codes, int64_t column, int64_t n,
                        int64_t size, const LaneSource source, bool stream, void* to, Dtype dtype) {
    with_dtype(dtype, [&]<Dtype D>() {
        with_decoding(decoding_of(spec), [&]<Decoding HOW>() {
            source.offsets
                ? decode_loop<D, HOW, true>(spec, source, codes, column, n, size, stream, to)
                : decode_loop<D, HOW, false>(spec, source, codes, column, n, size, stream, to);
        });
    });
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
