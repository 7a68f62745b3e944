// SPDX-License-Identifier: BSD-3-Clause
// Patterns <-> a little-endian bit stream (numerics.md, section 6).
#pragma once

#include "blocks.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr uint64_t every(int period, uint64_t bits) {  // `bits` in each `period` bits of a word
    uint64_t word = 0;
    for (int at = 0; at < 64; at += period) word |= bits << at;
    return word;
}

constexpr uint64_t ones(int bits) { return (uint64_t(1) << bits) - 1; }

// Eight bytes, the low B bits of each -> 8 B bits, in three halvings of the gaps between them.
template <int B>
inline uint64_t squeeze(uint64_t w) {
    constexpr int gap = 8 - B;
    w = (w & every(16, ones(B))) | ((w & (every(16, ones(B)) << 8)) >> gap);
    w = (w & every(32, ones(2 * B))) | ((w & (every(32, ones(2 * B)) << 16)) >> (2 * gap));
    return (w & ones(4 * B)) | ((w & (ones(4 * B) << 32)) >> (4 * gap));
}

template <int B>
inline uint64_t spread(uint64_t w) {
    constexpr int gap = 8 - B;
    w = (w & ones(4 * B)) | ((w & (ones(4 * B) << (4 * B))) << (4 * gap));
    w = (w & every(32, ones(2 * B))) | ((w & (every(32, ones(2 * B)) << (2 * B))) << (2 * gap));
    return (w & every(16, ones(B))) | ((w & (every(16, ones(B)) << B)) << gap);
}

// Widths whose bytes hold whole codes: the words of one store, so that these loops vectorize.
inline void pack4(const uint8_t* codes, int64_t bytes, uint8_t* __restrict out) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint16_t w;
        copy<2>(&w, codes + 2 * i);
        out[i] = w | (w >> 4);
    }
}

inline void pack2(const uint8_t* codes, int64_t bytes, uint8_t* __restrict out) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint32_t w;
        copy<4>(&w, codes + 4 * i);
        out[i] = w | (w >> 6) | (w >> 12) | (w >> 18);
    }
}

inline void pack1(const uint8_t* codes, int64_t bytes, uint8_t* __restrict out) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint64_t w;
        copy<8>(&w, codes + 8 * i);
        w |= w >> 7;
        w |= w >> 14;
        out[i] = w | (w >> 28);
    }
}

#if defined(__AVX512BW__)
// Which byte of 16 goes where: the low B of either half moved together, or back again.
struct Places {
    alignas(16) uint8_t from[16];
};

template <int B>
constexpr Places both_halves(bool together) {
    Places places{};
    for (uint8_t& from : places.from) from = 0x80;  // 0
    for (int i = 0; i < B; ++i) {
        places.from[i] = i;
        places.from[together ? B + i : 8 + i] = together ? 8 + i : B + i;
    }
    return places;
}

// The same for each quarter of a register. Constants of the program: made here, they were made anew for
// each vector by some compilers.
template <int B, bool TOGETHER>
BLOCKSCALE_INLINE __m512i of_halves(__m512i bytes) {
    static constexpr Places places = both_halves<B>(TOGETHER);
    __m128i from = _mm_load_si128(reinterpret_cast<const __m128i*>(places.from));
    return _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(from));
}

// Eight codes in each 64-bit lane -> 8 B bits: products with powers of two put neighbours together,
// two bytes, then two words; a shift does the last step.
template <int B>
BLOCKSCALE_INLINE __m512i squeeze_wide(__m512i codes) {
    const __m512i bytes = _mm512_set1_epi16(1 | 1 << (8 + B));
    const __m512i words = _mm512_set1_epi32(1 | 1 << (16 + 2 * B));
    __m512i pairs = _mm512_maddubs_epi16(bytes, codes), fours = _mm512_madd_epi16(pairs, words);
    __m512i upper = _mm512_srli_epi64(fours, 32 - 4 * B);
    return _mm512_ternarylogic_epi64(_mm512_set1_epi64(ones(4 * B)), fours, upper, 0xCA);
}

// As many whole vectors of 64 codes as there are -> 8 B bytes each; up to 16 bytes beyond them are
// written. Returns how many codes that were.
template <int B>
inline int64_t pack_vectors(const uint8_t* codes, int64_t n, uint8_t* out) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64, out += 8 * B) {
        __m512i code = _mm512_loadu_si512(codes + i);
        if constexpr (B == 1) {
            uint64_t bits = _mm512_test_epi8_mask(code, code);
            copy<8>(out, &bits);
        } else if constexpr (B == 2) {
            __m512i pairs = _mm512_maddubs_epi16(code, _mm512_set1_epi16(0x0401));
            __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(fours));
        } else if constexpr (B == 4) {
            __m512i pairs = _mm512_maddubs_epi16(code, _mm512_set1_epi16(0x1001));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi16_epi8(pairs));
        } else {
            __m512i bytes = of_halves<B, true>(squeeze_wide<B>(code));
            __m128i* to[4];  // 2 B bytes each; the next store overwrites what is beyond them
            for (int lane = 0; lane < 4; ++lane)
                to[lane] = reinterpret_cast<__m128i*>(out + 2 * B * lane);
            _mm_storeu_si128(to[0], _mm512_castsi512_si128(bytes));
            _mm_storeu_si128(to[1], _mm512_extracti32x4_epi32(bytes, 1));
            _mm_storeu_si128(to[2], _mm512_extracti32x4_epi32(bytes, 2));
            _mm_storeu_si128(to[3], _mm512_extracti32x4_epi32(bytes, 3));
        }
    }
    return i;
}
#endif

// Other widths: words in one loop, which vectorizes, and their bytes moved together in another.
template <int B>
inline void pack_groups(const uint8_t* codes, int64_t groups, uint8_t* out) {
    alignas(64) uint64_t words[kChunk / 8];
    for (int64_t i = 0; i < groups; ++i) {
        uint64_t w;
        copy<8>(&w, codes + 8 * i);
        words[i] = squeeze<B>(w);
    }
    for (int64_t i = 0; i < groups; ++i) copy<8>(out + B * i, words + i);
}

template <int B>
inline void pack_width(const uint8_t* codes, int64_t n, uint8_t* out) {
#if defined(__AVX512BW__)
    int64_t done = pack_vectors<B>(codes, n, out);
    codes += done, n -= done, out += done * B / 8;
#endif
    if constexpr (B == 1) {
        pack1(codes, ceil_div(n, 8), out);
    } else if constexpr (B == 2) {
        pack2(codes, ceil_div(n, 4), out);
    } else if constexpr (B == 4) {
        pack4(codes, ceil_div(n, 2), out);
    } else {
        pack_groups<B>(codes, ceil_div(n, 8), out);
    }
}

// n patterns of `bits` < 8 bits -> ceil(n * bits / 8) bytes. `codes` may be read, and `out` written,
// up to 16 entries beyond their ends; n is at most kChunk.
inline void pack_bytes(int bits, uint8_t* codes, int64_t n, uint8_t* out) {
    memset(codes + n, 0, 8);
    switch (bits) {
        case 1: return pack_width<1>(codes, n, out);
        case 2: return pack_width<2>(codes, n, out);
        case 3: return pack_width<3>(codes, n, out);
        case 4: return pack_width<4>(codes, n, out);
        case 5: return pack_width<5>(codes, n, out);
        case 6: return pack_width<6>(codes, n, out);
        case 7: return pack_width<7>(codes, n, out);
    }
}

#if defined(__AVX512BW__)
// Bits that stay, and others that move left by LEFT, of each 64-bit lane.
template <uint64_t STAY, uint64_t MOVE, int LEFT>
BLOCKSCALE_INLINE __m512i part_wide(__m512i w) {
    __m512i moved = _mm512_slli_epi64(_mm512_and_si512(w, _mm512_set1_epi64(MOVE)), LEFT);
    return _mm512_ternarylogic_epi64(w, _mm512_set1_epi64(STAY), moved, 0xEA);  // (a & b) | c
}

// 8 B bits of each 64-bit lane -> eight codes: spread() of eight words.
template <int B>
BLOCKSCALE_INLINE __m512i spread_wide(__m512i w) {
    constexpr int gap = 8 - B;
    w = part_wide<ones(4 * B), (ones(4 * B) << (4 * B)), 4 * gap>(w);
    w = part_wide<every(32, ones(2 * B)), (every(32, ones(2 * B)) << (2 * B)), 2 * gap>(w);
    return part_wide<every(16, ones(B)), (every(16, ones(B)) << B), gap>(w);
}

// 8 B bytes -> 64 codes. 16 bytes are read from each quarter of them on, so up to 16 - 2 B beyond.
template <int B>
BLOCKSCALE_INLINE __m512i unpack64(const uint8_t* packed) {
    const __m128i* from = reinterpret_cast<const __m128i*>(packed);
    if constexpr (B == 1) {
        uint64_t bits;
        copy<8>(&bits, packed);
        return _mm512_maskz_set1_epi8(bits, 1);
    } else if constexpr (B == 2) {
        __m512i w = _mm512_cvtepu8_epi32(_mm_loadu_si128(from));
        w = _mm512_or_si512(w, _mm512_slli_epi32(w, 12));
        w = _mm512_or_si512(w, _mm512_slli_epi32(w, 6));
        return _mm512_and_si512(w, _mm512_set1_epi8(3));
    } else if constexpr (B == 4) {
        __m512i w = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        w = _mm512_or_si512(w, _mm512_slli_epi16(w, 4));
        return _mm512_and_si512(w, _mm512_set1_epi8(15));
    } else {
        auto quarter = [&](int i) BLOCKSCALE_INLINE_LAMBDA {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + 2 * B * i));
        };
        __m512i w = _mm512_castsi128_si512(quarter(0));
        w = _mm512_inserti32x4(w, quarter(1), 1);
        w = _mm512_inserti32x4(w, quarter(2), 2);
        w = _mm512_inserti32x4(w, quarter(3), 3);
        return spread_wide<B>(of_halves<B, false>(w));
    }
}
#elif defined(__AVX2__)
// 4 B bytes -> 32 codes.
template <int B>
BLOCKSCALE_INLINE __m256i unpack32(const uint8_t* packed) {
    if constexpr (B == 1) {
        int32_t bits;
        copy<4>(&bits, packed);
        const __m256i of_byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202,
                                                  0x0101010101010101, 0);
        const __m256i bit = _mm256_set1_epi64x(0x8040201008040201);
        __m256i w = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte);
        w = _mm256_cmpeq_epi8(_mm256_and_si256(w, bit), bit);
        return _mm256_and_si256(w, _mm256_set1_epi8(1));
    } else if constexpr (B == 2) {
        __m256i w = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed)));
        w = _mm256_or_si256(w, _mm256_slli_epi32(w, 12));
        w = _mm256_or_si256(w, _mm256_slli_epi32(w, 6));
        return _mm256_and_si256(w, _mm256_set1_epi8(3));
    } else {
        __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
        w = _mm256_or_si256(w, _mm256_slli_epi16(w, 4));
        return _mm256_and_si256(w, _mm256_set1_epi8(15));
    }
}
#endif

// As many whole vectors of codes as there are, and `readable` bytes hold; returns how many codes.
template <int B>
inline int64_t unpack_vectors(const uint8_t* packed, int64_t n, int64_t readable, uint8_t* codes) {
    int64_t i = 0;
#if defined(__AVX512BW__)
    constexpr bool whole = B == 1 || B == 2 || B == 4;
    constexpr int64_t read = whole ? 8 * B : 6 * B + 16;
    for (; i + 64 <= n && i / 8 * B + read <= readable; i += 64)
        _mm512_storeu_si512(codes + i, unpack64<B>(packed + i / 8 * B));
#elif defined(__AVX2__)
    if constexpr (B == 1 || B == 2 || B == 4) {
        for (; i + 32 <= n; i += 32)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), unpack32<B>(packed + i / 8 * B));
    }
#endif
    (void)packed, (void)n, (void)readable, (void)codes;
    return i;
}

// Groups of eight codes, in words: each is read as eight bytes, the last ones from a copy.
template <int B>
inline void unpack_groups(const uint8_t* packed, int64_t n, int64_t readable,
                          uint8_t* __restrict codes) {
    alignas(64) uint64_t words[kChunk / 8];
    int64_t groups = ceil_div(n, 8), plain = readable < 8 ? 0 : (readable - 8) / B + 1, j = 0;
    for (plain = smaller(plain, groups); j < plain; ++j) copy<8>(words + j, packed + B * j);
    for (; j < groups; ++j) {
        words[j] = 0;
        memcpy(words + j, packed + B * j, smaller(B, readable - B * j));
    }
    for (int64_t i = 0; i < groups; ++i) {
        uint64_t w = spread<B>(words[i] & ones(8 * B));
        copy<8>(codes + 8 * i, &w);
    }
}

inline void unpack4(const uint8_t* packed, int64_t bytes, uint8_t* __restrict codes) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint16_t w = (packed[i] | (packed[i] << 4)) & 0x0F0F;
        copy<2>(codes + 2 * i, &w);
    }
}

inline void unpack2(const uint8_t* packed, int64_t bytes, uint8_t* __restrict codes) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint32_t w = packed[i];
        w = (w | (w << 6) | (w << 12) | (w << 18)) & 0x03030303u;
        copy<4>(codes + 4 * i, &w);
    }
}

inline void unpack1(const uint8_t* packed, int64_t bytes, uint8_t* __restrict codes) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint64_t w = packed[i];
        w = (w | (w << 28)) & 0x0000000F0000000Full;
        w = (w | (w << 14)) & 0x0003000300030003ull;
        w = (w | (w << 7)) & 0x0101010101010101ull;
        copy<8>(codes + 8 * i, &w);
    }
}

template <int B>
inline void unpack_width(const uint8_t* packed, int64_t n, int64_t readable, uint8_t* codes) {
    int64_t done = unpack_vectors<B>(packed, n, readable, codes), bytes = done / 8 * B;
    packed += bytes, n -= done, readable -= bytes, codes += done;
    if constexpr (B == 1) {
        unpack1(packed, ceil_div(n, 8), codes);
    } else if constexpr (B == 2) {
        unpack2(packed, ceil_div(n, 4), codes);
    } else if constexpr (B == 4) {
        unpack4(packed, ceil_div(n, 2), codes);
    } else {
        unpack_groups<B>(packed, n, readable, codes);
    }
}

// The reverse. Up to 16 entries beyond the n codes are written; `readable` bytes of packed may be read.
inline void unpack_bytes(int bits, const uint8_t* packed, int64_t n, int64_t readable,
                         uint8_t* codes) {
    switch (bits) {
        case 1: return unpack_width<1>(packed, n, readable, codes);
        case 2: return unpack_width<2>(packed, n, readable, codes);
        case 3: return unpack_width<3>(packed, n, readable, codes);
        case 4: return unpack_width<4>(packed, n, readable, codes);
        case 5: return unpack_width<5>(packed, n, readable, codes);
        case 6: return unpack_width<6>(packed, n, readable, codes);
        case 7: return unpack_width<7>(packed, n, readable, codes);
    }
}

// Codes of 9 to 15 bits, which are rare: bit by bit through a 64-bit window.
inline void pack_wide(int bits, const uint16_t* codes, int64_t n, uint8_t* out) {
    uint64_t window = 0;
    int held = 0;
    for (int64_t i = 0; i < n; ++i) {
        window |= static_cast<uint64_t>(codes[i] & ones(bits)) << held;
        for (held += bits; held >= 8; held -= 8, window >>= 8) *out++ = window;
    }
    if (held > 0) *out = window;
}

inline void unpack_wide(int bits, const uint8_t* packed, int64_t n, uint16_t* codes) {
    uint64_t window = 0;
    int held = 0;
    for (int64_t i = 0; i < n; ++i) {
        for (; held < bits; held += 8) window |= static_cast<uint64_t>(*packed++) << held;
        codes[i] = window & ones(bits);
        window >>= bits;
        held -= bits;
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
