// SPDX-License-Identifier: BSD-3-Clause
// The stages of a chunk fused in registers, for AVX-512: scale, round, encode or scale back. The
// loops of encode.h and chunk.h say what it means and serve whatever this declines.
#pragma once

#include "../simd/vector.h"
#include "scales.h"
#include "statistics.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {

// What belongs to 16 neighbouring elements: how to scale them, back and forth, their zero points, and
// what is added to them.
struct Lanes {
    __m512 factor, step, zero, offset;
};

struct LaneSource {
    const float *factors, *steps;
    const float* zeros;      // null unless asym
    const float* offsets;    // null without

    BLOCKSCALE_INLINE Lanes block(int64_t b) const {
        return {_mm512_set1_ps(factors[b]), _mm512_set1_ps(steps[b]),
                zeros ? _mm512_set1_ps(zeros[b]) : _mm512_setzero_ps(),
                offsets ? _mm512_set1_ps(offsets[b]) : _mm512_setzero_ps()};
    }
    // Blocks b and b + 1 of eight elements each; only the first where there are no more elements.
    BLOCKSCALE_INLINE Lanes pair(int64_t b, int64_t elements) const {
        Lanes lanes = block(b);
        if (elements <= 8) return lanes;
        Lanes next = block(b + 1);
        lanes.factor = _mm512_mask_mov_ps(lanes.factor, 0xFF00, next.factor);
        lanes.step = _mm512_mask_mov_ps(lanes.step, 0xFF00, next.step);
        lanes.zero = _mm512_mask_mov_ps(lanes.zero, 0xFF00, next.zero);
        lanes.offset = _mm512_mask_mov_ps(lanes.offset, 0xFF00, next.offset);
        return lanes;
    }
    BLOCKSCALE_INLINE Lanes each(int64_t i, __mmask16 m) const {
        return {load_floats(factors + i, m), load_floats(steps + i, m),
                zeros ? load_floats(zeros + i, m) : _mm512_setzero_ps(),
                offsets ? load_floats(offsets + i, m) : _mm512_setzero_ps()};
    }
};

// A piece of a row, and how it is scaled.
struct WideChunk {
    const void* x;  // its first element
    Dtype dtype;
    int64_t column, n, size;
    const float* u;  // null unless drawn
    bool multiply;
    int64_t ahead;  // bytes to where the next unit begins, which is fetched meanwhile
    LaneSource source;
    bool stream;    // values only: see stream16
    bool finite;    // values only: none is NaN
};

namespace {

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
    if (size == 8) {
        for (int64_t i = 0; i < n; i += 16) body(i, lanes_of(n - i), source.pair(i / 8, n - i));
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

// The same, but quad<ALIKE>(i, lanes_at) for 64 whole elements at a time, where lanes_at(j) belong to
// the 16 of them from 16 j on, and rest(i, mask, lanes) for what is left. ALIKE: all elements of
// either half have one scale.
template <class Quad, class Rest>
BLOCKSCALE_INLINE void for_quads(const LaneSource source, int64_t column, int64_t n, int64_t size,
                                 Quad quad, Rest rest) {
    int64_t i = 0;
    if (size == 1) {
        for (; i + 64 <= n; i += 64)
            quad.template operator()<false>(i, [&](int j) BLOCKSCALE_INLINE_LAMBDA {
                return source.each(i + 16 * j, 0xFFFF);
            });
        for (; i < n; i += 16) rest(i, lanes_of(n - i), source.each(i, lanes_of(n - i)));
        return;
    }
    if (size == 8) {
        for (; i + 64 <= n; i += 64)
            quad.template operator()<false>(i, [&](int j) BLOCKSCALE_INLINE_LAMBDA {
                return source.pair(i / 8 + 2 * j, 16);
            });
        for (; i < n; i += 16) rest(i, lanes_of(n - i), source.pair(i / 8, n - i));
        return;
    }
    if ((size == 16 || size == 32) && column % size == 0) {
        if (size == 16) {
            for (; i + 64 <= n; i += 64)
                quad.template operator()<false>(i, [&](int j) BLOCKSCALE_INLINE_LAMBDA {
                    return source.block(i / 16 + j);
                });
        } else {
            for (; i + 64 <= n; i += 64)
                quad.template operator()<true>(i, [&](int j) BLOCKSCALE_INLINE_LAMBDA {
                    return source.block(i / 32 + j / 2);
                });
        }
        for (; i < n; i += 16) rest(i, lanes_of(n - i), source.block(i / size));
        return;
    }
    for_blocks(column, n, size, [&](int64_t from, int64_t length, int64_t block) {
        const Lanes lanes = source.block(block);
        int64_t k = from, end = from + length;
        for (; k + 64 <= end; k += 64)
            quad.template operator()<true>(k, [&](int) BLOCKSCALE_INLINE_LAMBDA { return lanes; });
        for (; k < end; k += 16) rest(k, lanes_of(end - k), lanes);
    });
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

// moved: there are offsets.
template <bool MULTIPLY>
BLOCKSCALE_INLINE __m512 to_steps(__m512 x, const Lanes& lanes, bool moved) {
    if (moved) [[unlikely]] x = _mm512_sub_ps(x, lanes.offset);
    return MULTIPLY ? _mm512_mul_ps(x, lanes.factor) : _mm512_div_ps(x, lanes.factor);
}

BLOCKSCALE_INLINE __m512 from_steps(__m512 value, const Lanes& lanes, bool moved) {
    value = _mm512_mul_ps(value, lanes.step);
    if (moved) [[unlikely]] value = _mm512_add_ps(value, lanes.offset);
    return value;
}

// Run f with <dtype, multiply, drawn> as constants. DRAWS: whether there is anything to draw.
template <bool DRAWS, class F>
inline void with_constants(Dtype dtype, bool multiply, bool drawn, F f) {
    with_dtype(dtype, [&]<Dtype D>() {
        if constexpr (DRAWS) {
            if (drawn) return multiply ? f.template operator()<D, true, true>()
                                       : f.template operator()<D, false, true>();
        }
        multiply ? f.template operator()<D, true, false>()
                 : f.template operator()<D, false, false>();
    });
}

// Whether a chunk's vectors begin on whole lines of the output, which then may go around the caches
// from registers.
inline bool on_lines(const void* to, int64_t column, int64_t size) {
    int64_t step = size == 1 ? 1 : size == 8 ? 8 : size == 16 ? 16 : 32;
    return size % step == 0 && column % step == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0;
}

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

// 64 codes as bytes, of the elements from index i on.
template <Dtype D, bool MULTIPLY, bool DRAWN, class Elements, class LanesAt>
BLOCKSCALE_INLINE __m512i codes64(const Elements& e, const void* x, int64_t i, const float* u,
                                  int64_t ahead, bool moved, LanesAt lanes_at) {
    __m512 y[4], chance[4], zero[4];
    for (int j = 0; j < 4; ++j) {
        int64_t at = i + 16 * j;
        prefetch<D>(x, at, ahead);
        Lanes lanes = lanes_at(j);
        y[j] = to_steps<MULTIPLY>(load16<D>(x, at, 0xFFFF), lanes, moved);
        zero[j] = lanes.zero;
        chance[j] = chances<DRAWN>(u, at, 0xFFFF);
    }
    return e.template bytes<DRAWN>(y, zero, chance);
}

// Codes into `to`, which has room for 16 entries beyond n. `make` gives the elements: made here, their
// constants stay in registers. A reference would be read again after each store of bytes, which might
// change it, and a copy waits for the stores that just filled it.
template <class Make, int B, Dtype D, bool MULTIPLY, bool DRAWN>
void codes_loop(Make make, const WideChunk& c, void* to) {
    const auto e = make();
    const void* x = c.x;
    const float* u = c.u;
    int64_t ahead = c.ahead;
    LaneSource source = c.source;
    const bool moved = source.offsets;
    constexpr bool of_words = MULTIPLY && decltype(make())::template kOfWords<D>;
    auto rest = [&](int64_t i, __mmask16 mask, Lanes lanes) BLOCKSCALE_INLINE_LAMBDA {
        prefetch<D>(x, i, ahead);
        __m512 y = to_steps<MULTIPLY>(load16<D>(x, i, mask), lanes, moved);
        store_codes16<B>(to, i, e.template codes<DRAWN>(y, lanes, chances<DRAWN>(u, i, mask)));
    };
    auto quad = [&]<bool ALIKE>(int64_t i, auto lanes_at) BLOCKSCALE_INLINE_LAMBDA {
        uint8_t* out = static_cast<uint8_t*>(to) + i;
        if constexpr (of_words) {  // numbers are counted as they lie in memory
            if (ALIKE && e.of_words) {
                prefetch<D>(x, i, ahead);
                prefetch<D>(x, i + 32, ahead);
                const uint16_t* words = static_cast<const uint16_t*>(x) + i;
                __m512i codes = e.bytes(words, lanes_at(0).factor, lanes_at(2).factor);
                return _mm512_storeu_si512(out, codes);
            }
        }
        _mm512_storeu_si512(out, codes64<D, MULTIPLY, DRAWN>(e, x, i, u, ahead, moved, lanes_at));
    };
    if constexpr (B == 2) {
        for_lanes(source, c.column, c.n, c.size, rest);
    } else {
        for_quads(source, c.column, c.n, c.size, quad, rest);
    }
}

template <int B, class Make>
void wide_codes(Make make, const WideChunk& c, void* to) {
    constexpr bool draws = decltype(make())::kDraws;
    with_constants<draws>(c.dtype, c.multiply, c.u, [&]<Dtype D, bool MULTIPLY, bool DRAWN>() {
        codes_loop<Make, B, D, MULTIPLY, DRAWN>(make, c, to);
    });
}

// Values times their steps into `to` [n] of the same dtype.
template <class Make, Dtype D, bool MULTIPLY, bool DRAWN>
void values_loop(Make make, const WideChunk& c, void* to) {
    const auto e = make();
    const void* x = c.x;
    const float* u = c.u;
    int64_t ahead = c.ahead;
    const bool stream = c.stream, finite = c.finite;
    LaneSource source = c.source;
    const bool moved = source.offsets;
    auto value = [&](int64_t i, __mmask16 mask, const Lanes& lanes) BLOCKSCALE_INLINE_LAMBDA {
        prefetch<D>(x, i, ahead);
        __m512 y = to_steps<MULTIPLY>(load16<D>(x, i, mask), lanes, moved);
        __m512 v = e.template values<DRAWN>(y, lanes, chances<DRAWN>(u, i, mask));
        return from_steps(v, lanes, moved);
    };
    auto quad = [&]<bool ALIKE>(int64_t i, auto lanes_at) BLOCKSCALE_INLINE_LAMBDA {
        __m512 v[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) v[j] = value(i + 16 * j, 0xFFFF, lanes_at(j));
        store64<D>(to, i, v, stream, finite);
    };
    auto rest = [&](int64_t i, __mmask16 mask, Lanes lanes) BLOCKSCALE_INLINE_LAMBDA {
        store16<D>(to, i, mask, value(i, mask, lanes));
    };
    for_quads(source, c.column, c.n, c.size, quad, rest);
}

template <class Make>
void wide_values(Make make, const WideChunk& c, void* to) {
    constexpr bool draws = decltype(make())::kDraws;
    with_constants<draws>(c.dtype, c.multiply, c.u, [&]<Dtype D, bool MULTIPLY, bool DRAWN>() {
        values_loop<Make, D, MULTIPLY, DRAWN>(make, c, to);
    });
}

// Whether the functions above serve this format and a chunk from `column` on.
inline bool wide_serves(const Spec& spec, int64_t column, int64_t size) {
    bool rounds = spec.rounding == Rounding::nearest_even || spec.rounding == Rounding::stochastic;
    return rounds && (size == 1 || size >= 16 || (size == 8 && column % 8 == 0));
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA

#endif
