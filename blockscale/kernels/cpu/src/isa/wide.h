// The stages of a chunk fused in registers, for AVX-512: scale, round, encode or scale back. The
// loops of encode.h and chunk.h say what it means and serve whatever this declines.
#pragma once

#include "floats.h"
#include "scales.h"
#include "statistics.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

BLOCKSCALE_INLINE __mmask16 lanes_of(int64_t n) { return n >= 16 ? 0xFFFF : (1u << n) - 1; }

// A masked load takes several times as long as a plain one (Zen 5), also where the mask is full.
BLOCKSCALE_INLINE __m512 load_floats(const float* from, __mmask16 mask) {
    return mask == 0xFFFF ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(mask, from);
}

// 16 numbers at index i, those beyond `mask` read as 0 and not touched.
template <Dtype D>
BLOCKSCALE_INLINE __m512 load16(const void* x, int64_t i, __mmask16 mask) {
    if constexpr (D == Dtype::fp32) return load_floats(static_cast<const float*>(x) + i, mask);
    const uint16_t* from = static_cast<const uint16_t*>(x) + i;
    __m256i halves = mask == 0xFFFF
                         ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                         : _mm256_maskz_loadu_epi16(mask, from);
    if constexpr (D == Dtype::fp16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

template <Dtype D>
BLOCKSCALE_INLINE void prefetch(const void* x, int64_t i, int64_t ahead) {
    constexpr int64_t bytes = D == Dtype::fp32 ? 4 : 2;
    _mm_prefetch(static_cast<const char*>(x) + i * bytes + ahead, _MM_HINT_T1);
}

BLOCKSCALE_INLINE __m256i to_bfloat16(__m512 value) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7FFF));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    sum = _mm512_mask_mov_epi32(sum, nan, _mm512_set1_epi32(0x7FC00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}

template <Dtype D>
BLOCKSCALE_INLINE void store16(void* y, int64_t i, __mmask16 mask, __m512 value) {
    if constexpr (D == Dtype::fp32) {
        float* to = static_cast<float*>(y) + i;
        mask == 0xFFFF ? _mm512_storeu_ps(to, value) : _mm512_mask_storeu_ps(to, mask, value);
        return;
    }
    __m256i halves = D == Dtype::fp16 ? _mm512_cvtps_ph(value, 0) : to_bfloat16(value);
    uint16_t* to = static_cast<uint16_t*>(y) + i;
    if (mask == 0xFFFF) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
    } else {
        _mm256_mask_storeu_epi16(to, mask, halves);
    }
}

// What belongs to 16 neighbouring elements: how to scale them, back and forth, and their zero points.
struct Lanes {
    __m512 factor, step;
    __m512i zero;
};

struct LaneSource {
    const float *factors, *steps;
    const int32_t* zeros;  // null unless asym

    BLOCKSCALE_INLINE Lanes block(int64_t b) const {
        return {_mm512_set1_ps(factors[b]), _mm512_set1_ps(steps[b]),
                zeros ? _mm512_set1_epi32(zeros[b]) : _mm512_setzero_si512()};
    }
    BLOCKSCALE_INLINE Lanes each(int64_t i, __mmask16 m) const {
        const float* z = reinterpret_cast<const float*>(zeros);
        return {load_floats(factors + i, m), load_floats(steps + i, m),
                z ? _mm512_castps_si512(load_floats(z + i, m)) : _mm512_setzero_si512()};
    }
};

// Call body(i, mask, lanes) for elements i ... i + 15 of a chunk whose blocks have `size` columns.
template <class Body>
BLOCKSCALE_INLINE void for_lanes(const LaneSource source, int64_t column,
                                                     int64_t n, int64_t size, Body body) {
    if (size == 1) {
        int64_t i = 0;
        for (; i + 16 <= n; i += 16) body(i, 0xFFFF, source.each(i, 0xFFFF));
        if (i < n) body(i, lanes_of(n - i), source.each(i, lanes_of(n - i)));
        return;
    }
    if ((size == 16 || size == 32) && column % size == 0) {
        int64_t i = 0;
        if (size == 16) {
            for (; i + 16 <= n; i += 16) body(i, 0xFFFF, source.block(i / 16));
        } else {
            for (; i + 32 <= n; i += 32) {
                Lanes lanes = source.block(i / 32);
                body(i, 0xFFFF, lanes);
                body(i + 16, 0xFFFF, lanes);
            }
        }
        for (; i < n; i += 16) body(i, lanes_of(n - i), source.block(i / size));
        return;
    }
    for_blocks(column, n, size, [&](int64_t i, int64_t length, int64_t block) {
        Lanes lanes = source.block(block);
        int64_t end = i + length;
        for (; i + 16 <= end; i += 16) body(i, 0xFFFF, lanes);
        if (i < end) body(i, lanes_of(end - i), lanes);
    });
}

template <bool MULTIPLY>
BLOCKSCALE_INLINE __m512 to_steps(__m512 x, const Lanes& lanes) {
    return MULTIPLY ? _mm512_mul_ps(x, lanes.factor) : _mm512_div_ps(x, lanes.factor);
}

BLOCKSCALE_INLINE __m512 with_sign_of(__m512 magnitude, __m512 y) {  // magnitude | (y & sign)
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_castps_si512(magnitude), _mm512_castps_si512(y), _mm512_set1_epi32(INT32_MIN), 0xF8));
}

// |t| + 1 where u is below the fraction of |t|, else |t|, without fractions; t >= 0.
BLOCKSCALE_INLINE __m512 by_chance(__m512 t, __m512 u) {
    __m512 whole = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __mmask16 up = _mm512_cmp_ps_mask(u, _mm512_sub_ps(t, whole), _CMP_LT_OQ);
    return _mm512_mask_add_ps(whole, up, whole, _mm512_set1_ps(1.0f));
}

struct WideIntegers {
    explicit WideIntegers(const Spec& spec)
        : low(_mm512_set1_ps(spec.element.low)), high(_mm512_set1_ps(spec.element.high)),
          mask(_mm512_set1_epi32((1 << spec.element.bits) - 1)), magic(_mm512_set1_ps(kMagic)),
          asym(spec.asym) {}

    // 1.5 * 2^23 + the whole steps, whose low bits are the steps.
    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 sum(__m512 y, const Lanes& lanes, __m512 u) const {
        y = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, y, _CMP_ORD_Q), y);
        __m512 below = low, above = high;
        if (asym) {
            __m512 zero = _mm512_cvtepi32_ps(lanes.zero);
            below = _mm512_sub_ps(low, zero);
            above = _mm512_sub_ps(high, zero);
        }
        __m512 t = _mm512_min_ps(_mm512_max_ps(y, below), above);
        if constexpr (DRAWN) t = with_sign_of(by_chance(_mm512_abs_ps(t), u), t);
        return _mm512_add_ps(t, magic);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes& lanes, __m512 u) const {
        __m512i steps = _mm512_castps_si512(sum<DRAWN>(y, lanes, u));
        return _mm512_and_si512(_mm512_add_epi32(steps, lanes.zero), mask);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes& lanes, __m512 u) const {
        return _mm512_sub_ps(sum<DRAWN>(y, lanes, u), magic);
    }

    __m512 low, high;
    __m512i mask;
    __m512 magic;
    bool asym;
};

// See MinifloatLimits in encode.h for the idea.
struct WideMinifloats {
    explicit WideMinifloats(const Spec& spec) {
        const Element& e = spec.element;
        mantissa_free = e.mantissa_bits == 0;
        int shift = 23 - e.mantissa_bits;
        int32_t smallest = (1 - e.bias + 127) << 23;
        largest = _mm512_set1_ps(e.high);
        lowest = _mm512_set1_epi32(smallest);
        magic = _mm512_set1_epi32((shift << 23) | 0x400000);
        right = _mm_cvtsi32_si128(shift);
        // The field of the smallest normal number counts as 0 steps: taken off within `counting`, as
        // an even number of them, so that ties still go to even.
        int32_t fields = smallest >> shift, odd = fields & 1;
        rebias = _mm512_set1_epi32(fields);
        counting = _mm512_add_epi32(magic, _mm512_set1_epi32(-(fields - odd) & 0xFF));
        one_more = _mm512_set1_epi32(odd);
        sign_right = _mm_cvtsi32_si128(32 - e.bits);
        sign = _mm512_set1_epi32(1 << (e.bits - 1));
        nan_code = _mm512_set1_epi32(e.nan_code < 0 ? 0 : e.nan_code);
        nan = _mm512_set1_ps(e.nan_code < 0 ? 0.0f : from_bits(0x7FC00000));
        to_mantissa = _mm512_set1_epi32(
            static_cast<int32_t>((254u + e.mantissa_bits) << 23));
        from_mantissa = _mm512_set1_ps(from_bits((127 - e.mantissa_bits) << 23));
    }

    BLOCKSCALE_INLINE __m512i field(__m512 size) const {
        __m512i bits = _mm512_castps_si512(size);
        return _mm512_max_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(kInfinity)), lowest);
    }

    // The smaller of |y| and the largest value; NaN gives the latter.
    BLOCKSCALE_INLINE __m512 size(__m512 y) const { return _mm512_range_ps(y, largest, 0b1010); }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512i codes(__m512 y, const Lanes&, __m512 u) const {
        __m512 a = size(y);
        __m512i binade = field(a), steps;
        if constexpr (DRAWN) {
            __m512i inverse = _mm512_sub_epi32(to_mantissa, binade);
            steps = _mm512_cvttps_epi32(
                by_chance(_mm512_mul_ps(a, _mm512_castsi512_ps(inverse)), u));
            steps = _mm512_sub_epi32(steps, rebias);
        } else {  // in the low byte; what is above it is cut off
            __m512i big = _mm512_add_epi32(binade, counting);
            steps = _mm512_castps_si512(_mm512_add_ps(a, _mm512_castsi512_ps(big)));
            if (mantissa_free) steps = _mm512_sub_epi32(steps, one_more);
        }
        __m512i code = _mm512_add_epi32(steps, _mm512_srl_epi32(binade, right));
        __m512i high = _mm512_srl_epi32(_mm512_castps_si512(y), sign_right);
        code = _mm512_ternarylogic_epi32(code, high, sign, 0xF8);
        return _mm512_mask_mov_epi32(code, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), nan_code);
    }

    template <bool DRAWN>
    BLOCKSCALE_INLINE __m512 values(__m512 y, const Lanes&, __m512 u) const {
        __m512 a = size(y), value;
        __m512i binade = field(a);
        if constexpr (DRAWN) {
            __m512i inverse = _mm512_sub_epi32(to_mantissa, binade);
            value = by_chance(_mm512_mul_ps(a, _mm512_castsi512_ps(inverse)), u);
            value = _mm512_mul_ps(_mm512_mul_ps(value, from_mantissa), _mm512_castsi512_ps(binade));
        } else {
            __m512 big = _mm512_castsi512_ps(_mm512_add_epi32(binade, magic));
            value = _mm512_sub_ps(_mm512_add_ps(a, big), big);
        }
        value = with_sign_of(value, y);
        return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), nan);
    }

    __m512 largest, nan, from_mantissa;
    __m512i lowest, magic, rebias, counting, one_more, sign, nan_code, to_mantissa;
    bool mantissa_free;  // without mantissa bits `one_more` may be 1
    __m128i right, sign_right;
};

// Run f with <dtype, multiply, drawn> as constants.
template <class F>
inline void with_constants(Dtype dtype, bool multiply, bool drawn, F f) {
    auto kind = [&]<Dtype D>() {
        if (multiply) return drawn ? f.template operator()<D, true, true>()
                                   : f.template operator()<D, true, false>();
        drawn ? f.template operator()<D, false, true>() : f.template operator()<D, false, false>();
    };
    switch (dtype) {
        case Dtype::fp32: return kind.template operator()<Dtype::fp32>();
        case Dtype::bf16: return kind.template operator()<Dtype::bf16>();
        case Dtype::fp16: return kind.template operator()<Dtype::fp16>();
    }
}

struct WideChunk {
    const void* x;  // its first element
    Dtype dtype;
    int64_t column, n, size;
    const float* u;  // null unless drawn
    bool multiply;
    int64_t ahead;  // bytes to where the next unit begins, which is fetched meanwhile
    LaneSource source;
};

template <bool DRAWN>
BLOCKSCALE_INLINE __m512 chances(const float* u, int64_t i, __mmask16 mask) {
    return DRAWN ? load_floats(u + i, mask) : _mm512_setzero_ps();
}

// 16 codes of B bytes to entry i.
template <int B>
BLOCKSCALE_INLINE void store_codes16(void* to, int64_t i, __m512i codes) {
    if constexpr (B == 1) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint8_t*>(to) + i),
                         _mm512_cvtepi32_epi8(codes));
    } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(to) + i),
                            _mm512_cvtepi32_epi16(codes));
    }
}

// Codes into `to`, which has room for 16 entries beyond n. What the loop reads is copied to locals
// one by one: members would be loaded again after each store of bytes, which might change them, and
// a copy of the whole struct waits for the stores that just filled it.
template <class Elements, int B, Dtype D, bool MULTIPLY, bool DRAWN>
void codes_loop(const Elements& elements, const WideChunk& c, void* to) {
    const Elements e = elements;
    const void* x = c.x;
    const float* u = c.u;
    int64_t ahead = c.ahead;
    for_lanes({c.source.factors, c.source.steps, c.source.zeros}, c.column, c.n, c.size,
              [=](int64_t i, __mmask16 mask, Lanes lanes) BLOCKSCALE_INLINE_LAMBDA {
        prefetch<D>(x, i, ahead);
        __m512 y = to_steps<MULTIPLY>(load16<D>(x, i, mask), lanes);
        store_codes16<B>(to, i, e.template codes<DRAWN>(y, lanes, chances<DRAWN>(u, i, mask)));
    });
}

template <class Elements, int B>
void wide_codes(const Elements& e, const WideChunk& c, void* to) {
    with_constants(c.dtype, c.multiply, c.u, [&]<Dtype D, bool MULTIPLY, bool DRAWN>() {
        codes_loop<Elements, B, D, MULTIPLY, DRAWN>(e, c, to);
    });
}

// Values times their steps into `to` [n] of the same dtype.
template <class Elements, Dtype D, bool MULTIPLY, bool DRAWN>
void values_loop(const Elements& elements, const WideChunk& c, void* to) {
    const Elements e = elements;
    const void* x = c.x;
    const float* u = c.u;
    int64_t ahead = c.ahead;
    for_lanes({c.source.factors, c.source.steps, c.source.zeros}, c.column, c.n, c.size,
              [=](int64_t i, __mmask16 mask, Lanes lanes) BLOCKSCALE_INLINE_LAMBDA {
        prefetch<D>(x, i, ahead);
        __m512 y = to_steps<MULTIPLY>(load16<D>(x, i, mask), lanes);
        __m512 v = e.template values<DRAWN>(y, lanes, chances<DRAWN>(u, i, mask));
        store16<D>(to, i, mask, _mm512_mul_ps(v, lanes.step));
    });
}

template <class Elements>
void wide_values(const Elements& e, const WideChunk& c, void* to) {
    with_constants(c.dtype, c.multiply, c.u, [&]<Dtype D, bool MULTIPLY, bool DRAWN>() {
        values_loop<Elements, D, MULTIPLY, DRAWN>(e, c, to);
    });
}

// Whether the functions above serve this format and chunk.
inline bool wide_serves(const Spec& spec, int64_t size) {
    bool rounds = spec.rounding == Rounding::nearest_even || spec.rounding == Rounding::stochastic;
    return rounds && spec.element.family != Family::binary && (size == 1 || size >= 16);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
