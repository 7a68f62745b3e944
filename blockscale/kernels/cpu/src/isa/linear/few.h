// SPDX-License-Identifier: BSD-3-Clause
// Codes -> vectors of 16 float32 values in registers, for linear layers of few rows.
//
// Each decoder takes a unit of kUnit codes (kBytes bytes) at a time and makes kVectors vectors of
// them: element k of a unit becomes lane `lane(k)` of vector `vector(k)`, and x is laid out in the
// same order once. kNeighbours neighbouring codes meet in one lane, one in each vector, so that
// blocks of a multiple of them have a scale for each lane.
#pragma once

#include "../../linear.h"
#include "../simd/table.h"

#if defined(__AVX512F__)

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// What decoders need to know of a format.
struct Decoding {
    __m512 table;      // values of the 16 codes of 4 bits
    __m512i mask;      // 8-bit minifloats: the bits that stay when sign and exponent are in place
    int shift;         // and how far the exponent moves: to the 5 bits of a float16
    float factor;      // what its bias makes of the values
    const float* values;  // of the codes of 8 bits
};

// 4 bits: a table. Lane i holds the 8 codes of the 32-bit word i.
struct Nibbles {
    static constexpr int kUnit = 128, kBytes = 64, kVectors = 8, kNeighbours = 8;
    static constexpr bool kScaled = false;
    static int lane(int k) { return k / 8; }
    static int vector(int k) { return k % 8; }

    static void decode(const Decoding& d, const uint8_t* codes, __m512 (&values)[kVectors]) {
        __m512i words = _mm512_loadu_si512(codes);
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j)  // only the low 4 bits of an index count
            values[j] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * j), d.table);
    }
};

// 8-bit minifloats with up to 5 exponent bits: each is a float16 with its exponent moved, times a
// power of two. Float16 subnormals convert without a penalty, which float32's may have.
struct Minifloats {
    static constexpr int kUnit = 32, kBytes = 32, kVectors = 2, kNeighbours = 2;
    static constexpr bool kScaled = true;  // by Decoding::factor
    static int lane(int k) { return k / 2; }
    static int vector(int k) { return k % 2; }

    static void decode(const Decoding& d, const uint8_t* codes, __m512 (&values)[kVectors]) {
        __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
        __m256i mask = _mm512_castsi512_si256(d.mask);
        __m128i shift = _mm_cvtsi32_si128(d.shift);
        __m256i even = _mm256_sra_epi16(_mm256_slli_epi16(words, 8), shift);
        __m256i odd = _mm256_sra_epi16(words, shift);
        values[0] = _mm512_cvtph_ps(_mm256_and_si256(even, mask));
        values[1] = _mm512_cvtph_ps(_mm256_and_si256(odd, mask));
    }
};

// 8-bit integers.
template <bool SIGNED>
struct Bytes {
    static constexpr int kUnit = 32, kBytes = 32, kVectors = 2, kNeighbours = kUnit;
    static constexpr bool kScaled = false;
    static int lane(int k) { return k % 16; }
    static int vector(int k) { return k / 16; }

    static void decode(const Decoding&, const uint8_t* codes, __m512 (&values)[kVectors]) {
        for (int j = 0; j < kVectors; ++j) {
            __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * j));
            values[j] = _mm512_cvtepi32_ps(SIGNED ? _mm512_cvtepi8_epi32(part)
                                                  : _mm512_cvtepu8_epi32(part));
        }
    }
};

// 8 bits: a table.
struct Places {
    static constexpr int kUnit = 32, kBytes = 32, kVectors = 2, kNeighbours = kUnit;
    static constexpr bool kScaled = false;
    static int lane(int k) { return k % 16; }
    static int vector(int k) { return k / 16; }

    static void decode(const Decoding& d, const uint8_t* codes, __m512 (&values)[kVectors]) {
        for (int j = 0; j < kVectors; ++j) {
            __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * j));
            values[j] = _mm512_castsi512_ps(look_up(d.values, 8, _mm512_cvtepu8_epi32(part)));
        }
    }
};

// The numbers of the blocks of a unit, one for each lane: steps or zero points.
struct LaneBlocks {
    __m512i index;       // the block of each lane, counted from the unit's first
    __m512i bytes;       // the same for scale codes: where each lane's byte comes from
    int64_t per_unit;    // blocks in a unit; 0: units in a block, which is more than one
    int64_t units;       // in a block
};

enum class Steps { floats, e8m0, minifloats };

// Where the blocks of a unit lie: `at` among all blocks of the weight.
struct Position {
    int64_t at, left;  // left: units until the block ends, where blocks hold several

    Position(const LaneBlocks& b, int64_t row) : at(row), left(b.units) {}

    void advance(const LaneBlocks& b) {
        at += b.per_unit;
        if (b.per_unit == 0 && --left == 0) ++at, left = b.units;
    }
};

// A unit has at most 8 blocks, and behind the last there is something to read. (A masked load of
// only those there are takes twice the time of all else together.)
inline __m512 eight_floats(const float* at) { return _mm512_castps256_ps512(_mm256_loadu_ps(at)); }

// The steps of the unit's blocks, but for `outer`.
template <Steps S>
inline __m512 unit_steps(const FloatWeight& w, const LaneBlocks& b, int64_t at) {
    if (b.per_unit == 0) {
        if (S == Steps::e8m0)
            return _mm512_castsi512_ps(_mm512_set1_epi32(int32_t{w.scale_codes[at]} << 23));
        return _mm512_set1_ps(w.steps[at]);
    }
    if (S == Steps::floats)
        return _mm512_permutexvar_ps(b.index, eight_floats(w.steps + at));
    int64_t eight;
    copy<8>(&eight, w.scale_codes + at);
    if (S == Steps::e8m0) {
        __m512i codes = _mm512_shuffle_epi8(_mm512_set1_epi64(eight), b.bytes);
        return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 23));
    }
    __m256i high = _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), _mm512_castsi512_si256(b.bytes));
    high = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(~0x4000));
    return _mm512_cvtph_ps(high);  // e4m3: see Minifloats
}

// What is taken off values, zero points, or added to them after steps, offsets.
enum class Shift { none, zeros, offsets };

inline __m512 unit_zeros(const FloatWeight& w, const LaneBlocks& b, int64_t at) {
    if (b.per_unit == 0) return _mm512_set1_ps(w.zero_points[at]);
    return _mm512_permutexvar_ps(b.index, eight_floats(w.zero_points + at));
}

inline __m512 unit_offsets(const FloatWeight& w, const LaneBlocks& b, int64_t at) {
    if (b.per_unit == 0) return _mm512_set1_ps(w.offsets[at]);
    return _mm512_permutexvar_ps(b.index, eight_floats(w.offsets + at));
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
#endif
