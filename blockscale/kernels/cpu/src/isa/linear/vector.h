// SPDX-License-Identifier: BSD-3-Clause
// The widest float32 vector of the instruction set, for linear layers: what has a tolerance there
// may be fused (numerics.md, section 7).
#pragma once

#include "../simd/bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kFloats = 16;
constexpr int kTileOutputs = 12;  // with two vectors of rows: 24 sums, 2 of x, 1 of the weight
#elif defined(__AVX2__)
constexpr int kFloats = 8;
constexpr int kTileOutputs = 6;
#elif defined(__aarch64__)
constexpr int kFloats = 4;
constexpr int kTileOutputs = 12;  // of 32 registers, as above
#else
constexpr int kFloats = 4;
constexpr int kTileOutputs = 6;
#endif

typedef float Vector __attribute__((vector_size(4 * kFloats)));
typedef int32_t Ints __attribute__((vector_size(4 * kFloats)));

inline Vector load(const float* x) {
    Vector v;
    copy<sizeof(v)>(&v, x);
    return v;
}

inline void store(float* x, Vector v) { copy<sizeof(v)>(x, &v); }

inline Vector all(float x) { return x - Vector{}; }

inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// The smaller and the larger of two numbers; b where one of them is NaN, and of two zeros.
inline Vector least(Vector a, Vector b) {
#if defined(__AVX512F__)
    return (Vector)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vector)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (Vector)_mm_min_ps((__m128)a, (__m128)b);
#else
    return a < b ? a : b;
#endif
}

inline Vector greatest(Vector a, Vector b) {
#if defined(__AVX512F__)
    return (Vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vector)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (Vector)_mm_max_ps((__m128)a, (__m128)b);
#else
    return a > b ? a : b;
#endif
}

inline Vector magnitude(Vector a) { return (Vector)((Ints)a & INT32_MAX); }

inline Vector size_and_sign(Vector size, Vector sign) {
    return (Vector)((Ints)size | ((Ints)sign & INT32_MIN));
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
