// SPDX-License-Identifier: BSD-3-Clause
// Philox4x32-10 (Salmon et al., SC 2011): the random numbers of numerics.md, section 2.
#pragma once

#include "blocks.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 32;

// The keys of all rounds, ready to be xor'ed.
struct PhiloxKeys {
    explicit PhiloxKeys(uint64_t key) {
        uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
        for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            even[round] = _mm512_set1_epi64(k0);
            odd[round] = _mm512_set1_epi64(k1);
        }
    }

    __m512i even[10], odd[10];
};

// The words of eight counters, in the low halves of 64-bit lanes: what lies in the high halves is
// never multiplied, so nothing has to be moved or cleared between rounds.
struct PhiloxState {
    __m512i c0, c1, c2, c3;

    // The first round on counters whose two upper words are 0: half of it is known.
    void start(uint64_t counter, __m512i even, __m512i odd) {
        __m512i index = _mm512_add_epi64(_mm512_set1_epi64(counter),
                                         _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
        c0 = _mm512_xor_si512(_mm512_srli_epi64(index, 32), even);
        c1 = _mm512_setzero_si512();
        c3 = _mm512_mul_epu32(index, _mm512_set1_epi64(0xD2511F53u));
        c2 = _mm512_xor_si512(_mm512_srli_epi64(c3, 32), odd);
    }

    void round(__m512i even, __m512i odd) {
        __m512i p0 = _mm512_mul_epu32(c0, _mm512_set1_epi64(0xD2511F53u));
        __m512i p1 = _mm512_mul_epu32(c2, _mm512_set1_epi64(0xCD9E8D57u));
        c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1, even, 0x96);
        c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3, odd, 0x96);
        c1 = p1;
        c3 = p0;
    }
};

inline __m512 to_chances(__m512i words) {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(words, 8)), _mm512_set1_ps(0x1p-24f));
}

// The 32 words of eight counters in the order of their elements.
inline void store_chances(const PhiloxState& s, float* u) {
    const __m512i low_half = _mm512_set1_epi64(0xFFFFFFFF);
    // (a & low) | b << 32: words 0 and 1, and words 2 and 3, of each counter side by side.
    __m512i front = _mm512_ternarylogic_epi64(_mm512_slli_epi64(s.c1, 32), s.c0, low_half, 0xF8);
    __m512i back = _mm512_ternarylogic_epi64(_mm512_slli_epi64(s.c3, 32), s.c2, low_half, 0xF8);
    const __m512i first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    _mm512_storeu_ps(u, to_chances(_mm512_permutex2var_epi64(front, first, back)));
    _mm512_storeu_ps(u + 16, to_chances(_mm512_permutex2var_epi64(front, second, back)));
}

// One number for each of 32 * CHAINS elements, the first of which is element 4 * counter. Rounds depend
// on each other: several chains at a time keep the multipliers busy.
template <int CHAINS>
inline void uniform_chains(const PhiloxKeys& keys, uint64_t counter, float* u) {
    PhiloxState s[CHAINS];
    for (int i = 0; i < CHAINS; ++i) s[i].start(counter + 8 * i, keys.even[0], keys.odd[0]);
#pragma GCC unroll 10
    for (int round = 1; round < 10; ++round)
#pragma GCC unroll 10
        for (int i = 0; i < CHAINS; ++i) s[i].round(keys.even[round], keys.odd[round]);
    for (int i = 0; i < CHAINS; ++i) store_chances(s[i], u + 32 * i);
}

inline void uniform_block(const PhiloxKeys& keys, uint64_t counter, float* u) {
    uniform_chains<4>(keys, counter, u);
}

// As many numbers as the most chains that registers hold give at a time; returns how many.
inline int64_t uniform_many(const PhiloxKeys& keys, uint64_t counter, int64_t n, float* u) {
    int64_t i = 0;
    for (; i + 192 <= n; i += 192) uniform_chains<6>(keys, counter + i / 4, u + i);
    return i;
}
#else
constexpr int kLanes = 16;  // counters at a time

struct PhiloxKeys {
    explicit PhiloxKeys(uint64_t seed) : key(seed) {}
    uint64_t key;
};

inline void multiply(uint32_t factor, const uint32_t* word, uint32_t* high, uint32_t* low) {
    for (int i = 0; i < kLanes; ++i) {
        uint64_t product = static_cast<uint64_t>(factor) * word[i];
        high[i] = product >> 32;
        low[i] = static_cast<uint32_t>(product);
    }
}

// One number for each of 4 * kLanes elements, the first of which is element 4 * counter.
inline void uniform_block(const PhiloxKeys& keys, uint64_t counter, float* __restrict u) {
    alignas(64) uint32_t c[4][kLanes], high0[kLanes], low0[kLanes], high1[kLanes], low1[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        c[0][i] = static_cast<uint32_t>(counter + i);
        c[1][i] = static_cast<uint32_t>((counter + i) >> 32);
        c[2][i] = c[3][i] = 0;
    }
    uint32_t k0 = static_cast<uint32_t>(keys.key), k1 = static_cast<uint32_t>(keys.key >> 32);
    for (int round = 0; round < 10; ++round) {
        multiply(0xD2511F53u, c[0], high0, low0);
        multiply(0xCD9E8D57u, c[2], high1, low1);
        for (int i = 0; i < kLanes; ++i) {
            c[0][i] = high1[i] ^ c[1][i] ^ k0;
            c[2][i] = high0[i] ^ c[3][i] ^ k1;
            c[1][i] = low1[i];
            c[3][i] = low0[i];
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < kLanes; ++i)
        for (int word = 0; word < 4; ++word)
            u[4 * i + word] = static_cast<float>(static_cast<int32_t>(c[word][i] >> 8)) * 0x1p-24f;
}

inline int64_t uniform_many(const PhiloxKeys&, uint64_t, int64_t, float*) { return 0; }
#endif

// u[i] in [0, 1) for the elements first ... first + n - 1 of the tensor.
inline void uniform(Seed seed, int64_t first, int64_t n, float* u) {
    alignas(64) float block[4 * kLanes];
    PhiloxKeys keys(seed.key);
    int64_t index = static_cast<int64_t>(static_cast<uint64_t>(first) + seed.first);
    for (int64_t i = 0; i < n;) {
        int64_t skip = index & 3, count = smaller(4 * kLanes - skip, n - i);
        uint64_t counter = index >> 2;  // of a negative index, too: its sign is kept
        int64_t many = skip == 0 ? uniform_many(keys, counter, n - i, u + i) : 0;
        if (many) {
            count = many;
        } else if (skip == 0 && count == 4 * kLanes) {
            uniform_block(keys, counter, u + i);
        } else {
            uniform_block(keys, counter, block);
            memcpy(u + i, block + skip, count * sizeof(float));
        }
        i += count;
        index = static_cast<int64_t>(static_cast<uint64_t>(index) + count);
    }
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
