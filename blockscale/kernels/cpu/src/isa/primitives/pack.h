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
        memcpy(&w, codes + 2 * i, 2);
        out[i] = w | (w >> 4);
    }
}

inline void pack2(const uint8_t* codes, int64_t bytes, uint8_t* __restrict out) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint32_t w;
        memcpy(&w, codes + 4 * i, 4);
        out[i] = w | (w >> 6) | (w >> 12) | (w >> 18);
    }
}

inline void pack1(const uint8_t* codes, int64_t bytes, uint8_t* __restrict out) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint64_t w;
        memcpy(&w, codes + 8 * i, 8);
        w |= w >> 7;
        w |= w >> 14;
        out[i] = w | (w >> 28);
    }
}

#if defined(__AVX512BW__)
// Which byte of 16 goes where: the low B of either half moved together, or back again.
template <int B>
inline __m128i both_halves(bool together) {
    alignas(16) uint8_t from[16];
    for (int i = 0; i < 16; ++i) from[i] = 0x80;  // 0
    for (int i = 0; i < B; ++i) {
        from[i] = i;
        from[together ? B + i : 8 + i] = together ? 8 + i : B + i;
    }
    return _mm_load_si128(reinterpret_cast<const __m128i*>(from));
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
            memcpy(out, &bits, 8);
        } else if constexpr (B == 2) {
            __m512i pairs = _mm512_maddubs_epi16(code, _mm512_set1_epi16(0x0401));
            __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(fours));
        } else if constexpr (B == 4) {
            __m512i pairs = _mm512_maddubs_epi16(code, _mm512_set1_epi16(0x1001));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi16_epi8(pairs));
        } else {
            const __m512i together = _mm512_broadcast_i32x4(both_halves<B>(true));
            __m512i bytes = _mm512_shuffle_epi8(squeeze_wide<B>(code), together);
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
        memcpy(&w, codes + 8 * i, 8);
        words[i] = squeeze<B>(w);
    }
    for (int64_t i = 0; i < groups; ++i) memcpy(out + B * i, words + i, 8);
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

template <int B>
inline void unpack_groups(const uint8_t* packed, int64_t groups, uint8_t* __restrict codes) {
    alignas(64) uint64_t words[kChunk / 8];
    int64_t j = 0;
#if defined(__AVX512BW__)
    // Each load reads 16 bytes for 2 B: as many groups before the last stay within what all of them take.
    const __m128i apart = both_halves<B>(false);
    for (; j + 2 + ceil_div(16 - 2 * B, B) <= groups; j += 2) {
        __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + B * j));
        _mm_store_si128(reinterpret_cast<__m128i*>(words + j), _mm_shuffle_epi8(bytes, apart));
    }
#endif
    for (; j < groups; ++j) memcpy(words + j, packed + B * j, 8);
    for (int64_t i = 0; i < groups; ++i) {
        uint64_t w = spread<B>(words[i] & ones(8 * B));
        memcpy(codes + 8 * i, &w, 8);
    }
}

inline void unpack4(const uint8_t* packed, int64_t bytes, uint8_t* __restrict codes) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint16_t w = (packed[i] | (packed[i] << 4)) & 0x0F0F;
        memcpy(codes + 2 * i, &w, 2);
    }
}

inline void unpack2(const uint8_t* packed, int64_t bytes, uint8_t* __restrict codes) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint32_t w = packed[i];
        w = (w | (w << 6) | (w << 12) | (w << 18)) & 0x03030303u;
        memcpy(codes + 4 * i, &w, 4);
    }
}

inline void unpack1(const uint8_t* packed, int64_t bytes, uint8_t* __restrict codes) {
    for (int64_t i = 0; i < bytes; ++i) {
        uint64_t w = packed[i];
        w = (w | (w << 28)) & 0x0000000F0000000Full;
        w = (w | (w << 14)) & 0x0003000300030003ull;
        w = (w | (w << 7)) & 0x0101010101010101ull;
        memcpy(codes + 8 * i, &w, 8);
    }
}

// The reverse. Up to 16 entries beyond the n codes are written; `readable` bytes of packed may be read.
inline void unpack_bytes(int bits, const uint8_t* packed, int64_t n, int64_t readable,
                         uint8_t* codes) {
    if (bits == 1) return unpack1(packed, ceil_div(n, 8), codes);
    if (bits == 2) return unpack2(packed, ceil_div(n, 4), codes);
    if (bits == 4) return unpack4(packed, ceil_div(n, 2), codes);
    // Groups are read as eight bytes; the last ones from a copy.
    int64_t groups = ceil_div(n, 8), plain = readable < 8 ? 0 : (readable - 8) / bits + 1;
    plain = smaller(plain, groups);
    uint8_t last[24] = {};
    auto run = [&](const uint8_t* from, int64_t count, uint8_t* to) {
        switch (bits) {
            case 3: return unpack_groups<3>(from, count, to);
            case 5: return unpack_groups<5>(from, count, to);
            case 6: return unpack_groups<6>(from, count, to);
            case 7: return unpack_groups<7>(from, count, to);
        }
    };
    run(packed, plain, codes);
    for (int64_t i = plain; i < groups; ++i) {
        memset(last, 0, sizeof last);
        memcpy(last, packed + bits * i, smaller(bits, readable - bits * i));
        run(last, 1, codes + 8 * i);
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
