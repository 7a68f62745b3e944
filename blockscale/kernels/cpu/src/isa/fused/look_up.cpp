// SPDX-License-Identifier: BSD-3-Clause
// Codes looked up in a table of 256 entries, or of 65536: what an op of one operand is on codes of 8
// bits, or of 16.
#include "../simd/table.h"
#include "rows.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kCodesEach = 64 << 10;  // of a unit

#if defined(__AVX512BW__)
// 64 bytes. The table is 128 words in four registers; the low bit of a code says which half of one.
BLOCKSCALE_INLINE __m512i bytes64(const __m512i* table, __m512i codes) {
    const __m512i low = _mm512_set1_epi16(0x00FF);
    auto words = [&](__m512i code) BLOCKSCALE_INLINE_LAMBDA {  // code: in the low byte of each word
        __m512i place = _mm512_srli_epi16(code, 1);
        __m512i front = _mm512_permutex2var_epi16(table[0], place, table[1]);
        __m512i back = _mm512_permutex2var_epi16(table[2], place, table[3]);
        __mmask32 upper = _mm512_test_epi16_mask(place, _mm512_set1_epi16(64));
        __m512i word = _mm512_mask_mov_epi16(front, upper, back);
        __m512i shift = _mm512_slli_epi16(_mm512_and_si512(code, _mm512_set1_epi16(1)), 3);
        return _mm512_and_si512(_mm512_srlv_epi16(word, shift), low);
    };
    __m512i even = words(_mm512_and_si512(codes, low));
    __m512i odd = words(_mm512_srli_epi16(codes, 8));
    return _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
}
#elif defined(__AVX2__)
// 32 bytes: a shuffle looks in 16 entries, and gives 0 where bit 7 of a place is set; adding 0x70 with
// saturation sets it in all places beyond these entries.
BLOCKSCALE_INLINE __m256i bytes32(const uint8_t* table, __m256i codes) {
    __m256i found = _mm256_setzero_si256();
    for (int j = 0; j < 16; ++j) {
        __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * j));
        __m256i place = _mm256_sub_epi8(codes, _mm256_set1_epi8(static_cast<char>(16 * j)));
        place = _mm256_adds_epu8(place, _mm256_set1_epi8(0x70));
        found = _mm256_or_si256(found, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(part), place));
    }
    return found;
}
#endif

inline void bytes_of(const uint8_t* table, const uint8_t* codes, int64_t n,
                     uint8_t* __restrict out) {
    int64_t i = 0;
#if defined(__AVX512BW__)
    __m512i entries[4];
    for (int j = 0; j < 4; ++j) entries[j] = _mm512_loadu_si512(table + 64 * j);
    for (; i + 64 <= n; i += 64)
        _mm512_storeu_si512(out + i, bytes64(entries, _mm512_loadu_si512(codes + i)));
#elif defined(__AVX2__)
    for (; i + 32 <= n; i += 32)
        _mm256_storeu_si256(
            reinterpret_cast<__m256i*>(out + i),
            bytes32(table, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i))));
#endif
    for (; i < n; ++i) out[i] = table[codes[i]];
}

inline void halves_of(const uint16_t* table, const uint8_t* codes, int64_t n,
                      uint16_t* __restrict out) {
    int64_t i = 0;
#if defined(__AVX512BW__)
    for (; i + 32 <= n; i += 32) {
        __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
        _mm512_storeu_si512(out + i, look_up_words(table, 8, _mm512_cvtepu8_epi16(code)));
    }
#endif
    for (; i < n; ++i) out[i] = table[codes[i]];
}

inline void floats_of(const uint32_t* table, const uint8_t* codes, int64_t n,
                      uint32_t* __restrict out) {
    int64_t i = 0;
#if defined(__AVX512BW__)
    for (; i + 16 <= n; i += 16) {
        __m128i code = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
        _mm512_storeu_si512(out + i, look_up(table, 8, _mm512_cvtepu8_epi32(code)));
    }
#endif
    for (; i < n; ++i) out[i] = table[codes[i]];
}

// One load each: no register holds such a table, and gathers are slower than loads where the entries
// that occur lie in the first cache, as those of an activation's usual values do.
template <typename Entry>
inline void wide_of(const void* table, const uint16_t* codes, int64_t n, void* out) {
    const Entry* entries = static_cast<const Entry*>(table);
    Entry* __restrict to = static_cast<Entry*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = entries[codes[i]];
}

}  // namespace

void fused_look_up_wide(const void* table, int bytes, const uint16_t* codes, int64_t n, void* out,
                        int threads) {
    auto* run = bytes == 1   ? wide_of<uint8_t>
                : bytes == 2 ? wide_of<uint16_t>
                             : wide_of<uint32_t>;
    for_units(ceil_div(n, kCodesEach), threads, n >= chosen(Choice::threaded_elements), [&](int64_t unit) {
        int64_t first = unit * kCodesEach, many = smaller(kCodesEach, n - first);
        run(table, codes + first, many, static_cast<char*>(out) + first * bytes);
    });
}

void fused_look_up(const void* table, int bytes, const uint8_t* codes, int64_t n, void* out,
                   int threads) {
    alignas(64) uint32_t entries[256];
    memcpy(entries, table, 256 * bytes);
    for_units(ceil_div(n, kCodesEach), threads, n >= chosen(Choice::threaded_elements), [&](int64_t unit) {
        int64_t first = unit * kCodesEach, count = smaller(kCodesEach, n - first);
        const uint8_t* from = codes + first;
        char* to = static_cast<char*>(out) + first * bytes;
        if (bytes == 1) {
            bytes_of(reinterpret_cast<const uint8_t*>(entries), from, count,
                     reinterpret_cast<uint8_t*>(to));
        } else if (bytes == 2) {
            halves_of(reinterpret_cast<const uint16_t*>(entries), from, count,
                      reinterpret_cast<uint16_t*>(to));
        } else {
            floats_of(entries, from, count, reinterpret_cast<uint32_t*>(to));
        }
    });
}

}  // namespace blockscale::BLOCKSCALE_ISA
