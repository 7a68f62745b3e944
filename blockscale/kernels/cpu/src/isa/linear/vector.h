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
#else
constexpr int kFloats = 4;
constexpr int kTileOutputs = 6;
#endif

typedef float Vector __attribute__((vector_size(4 * kFloats)));

inline Vector load(const float* x) {
    Vector v;
    memcpy(&v, x, sizeof(v));
    return v;
}

inline void store(float* x, Vector v) { memcpy(x, &v, sizeof(v)); }

inline Vector all(float x) { return x - Vector{}; }

inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
