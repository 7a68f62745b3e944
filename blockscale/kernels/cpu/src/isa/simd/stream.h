// SPDX-License-Identifier: BSD-3-Clause
// Memory that is written around the caches, because nobody reads it soon.
#pragma once

#include "bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

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
    constexpr int64_t kLine = INT64_MAX;  // no such stores: all is copied
#endif
    if (n < 256 || n < kLine) {
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

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
