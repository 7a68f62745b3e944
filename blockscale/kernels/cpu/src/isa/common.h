// What every file of isa/ shares: bits, buffers, and the floating-point environment. Compiled once
// per instruction set, so nothing here may come from a header whose inline code the linker could
// take from another instruction set: no std:: templates.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../grid.h"
#include "../primitives.h"
#include "../spec.h"

// Loops that keep a dozen constants in registers, which a call in them would spill.
#define BLOCKSCALE_INLINE inline __attribute__((always_inline))
#define BLOCKSCALE_INLINE_LAMBDA __attribute__((always_inline))

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kChunk = 2048;        // elements that pass through all stages while in L1
constexpr int64_t kUnit = 16 * 1024;    // elements of one unit of work: 64 KB, far within L2
constexpr int64_t kPiece = 1024;        // elements that are read twice while in L1
constexpr int64_t kSmall = 16 * 1024;   // below this a second thread costs more than it gives
constexpr int64_t kAhead = 4096;        // elements between what is read and what is asked for
constexpr int64_t kStream = 32 << 20;   // bytes from which outputs go around the caches
constexpr int32_t kInfinity = 0x7F800000;
constexpr float kFltMax = 3.402823466e38f;
constexpr float kFltMin = 1.175494351e-38f;
constexpr float kMagic = 12582912.0f;   // 1.5 * 2^23: adding it rounds |t| < 2^22 to an integer

inline float from_bits(int32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline int32_t to_bits(float value) {
    int32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

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

// Subnormals count (numerics.md, notation), whatever torch.set_flush_denormal or a library built
// with -ffast-math has set on this thread.
class FullPrecision {
public:
#if defined(__x86_64__)
    FullPrecision() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~0x8040u & ~0x6000u); }
    ~FullPrecision() { _mm_setcsr(saved_); }

private:
    unsigned saved_;
#elif defined(__aarch64__)
    FullPrecision() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_));
        asm volatile("msr fpcr, %0" ::"r"(saved_ & ~(uint64_t(7) << 22)));
    }
    ~FullPrecision() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

private:
    uint64_t saved_;
#endif
};

// `n` bytes to memory that is not read again soon, without first reading it into the caches.
inline void stream_out(void* to, const void* from, int64_t n) {
    char* out = static_cast<char*>(to);
    const char* in = static_cast<const char*>(from);
#if defined(__AVX512F__)
    constexpr int64_t kLine = 64;
#elif defined(__AVX2__)
    constexpr int64_t kLine = 32;
#elif defined(__x86_64__)
    constexpr int64_t kLine = 16;
#else
    constexpr int64_t kLine = 0;
#endif
    if (kLine == 0 || n < 256) {
        memcpy(out, in, n);
        return;
    }
    int64_t head = (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine;
    memcpy(out, in, head);
    int64_t i = head;
    for (; i + kLine <= n; i += kLine) {
#if defined(__AVX512F__)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out + i), _mm512_loadu_si512(in + i));
#elif defined(__AVX2__)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(out + i),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i)));
#elif defined(__x86_64__)
        _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
#endif
    }
    memcpy(out + i, in + i, n - i);
}

inline void emit(void* to, const void* from, int64_t n, bool stream) {
    if (stream) {
        stream_out(to, from, n);
    } else {
        memcpy(to, from, n);
    }
}

// After streaming: other threads must see it.
inline void fence() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// Call body(offset, length, block) for the pieces of blocks of `size` in [first, first + n).
template <class Body>
BLOCKSCALE_INLINE void for_blocks(int64_t first, int64_t n, int64_t size, Body body) {
    int64_t left = size - first % size, block = 0;
    for (int64_t i = 0; i < n; i += left, left = size, ++block)
        body(i, left < n - i ? left : n - i, block);
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
