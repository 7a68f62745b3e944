// SPDX-License-Identifier: BSD-3-Clause
// The bits of float32, and small arithmetic on sizes. Every file of isa/ begins here.
//
// All of isa/ is compiled once for each instruction set, so nothing in it may come from a header whose
// inline code the linker could take from another instruction set: no std:: templates.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "../../spec.h"

// Loops that keep a dozen constants in registers, which a call in them would spill.
#define BLOCKSCALE_INLINE inline __attribute__((always_inline))
#define BLOCKSCALE_INLINE_LAMBDA __attribute__((always_inline))

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int32_t kInfinity = 0x7F800000;
constexpr float kFltMax = 3.402823466e38f;
constexpr float kFltMin = 1.175494351e-38f;
constexpr float kMagic = 12582912.0f;   // 1.5 * 2^23: adding it rounds |t| < 2^22 to an integer

// memcpy of N bytes, as a load and a store whatever the compiler was told to check. With
// -D_FORTIFY_SOURCE=3, which Ubuntu's GCC 13 sets by itself, memcpy into an array may be a call for each
// number, and its loop no loop over vectors: dequantizing int4 took 9 times as long.
template <int64_t N>
BLOCKSCALE_INLINE void copy(void* to, const void* from) {
    __builtin_memcpy(to, from, N);
}

inline float from_bits(int32_t bits) {
    float value;
    copy<4>(&value, &bits);
    return value;
}

inline int32_t to_bits(float value) {
    int32_t bits;
    copy<4>(&bits, &value);
    return bits;
}

// float32 as integers in the same order (-0 below 0): bits of the negative ones flipped.
inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & INT32_MAX); }

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
