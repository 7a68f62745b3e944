// SPDX-License-Identifier: BSD-3-Clause
// How floating-point arithmetic treats subnormal numbers and rounds, for as long as a kernel runs.
#pragma once

#include "bits.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

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

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
