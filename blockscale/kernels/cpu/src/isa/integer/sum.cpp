// SPDX-License-Identifier: BSD-3-Clause
// Codes and sums under another exponent, and sums and products of two of them.
#include "../simd/array.h"
#include "ending.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

constexpr int64_t kEach = 2048;  // sums at a time: they stay in L1

template <class W>
inline void read(const Integers& x, int64_t first, int64_t n, int32_t left, W* __restrict to) {
    with_type(x.type, [&](auto* type) {
        auto* from = static_cast<decltype(type)>(x.data) + first;
        W zero = x.zero;
        for (int64_t i = 0; i < n; ++i) to[i] = (static_cast<W>(from[i]) - zero) << left;
    });
}

template <class W>
inline void add(const Integers& x, int64_t first, int64_t n, int32_t left, int32_t sign,
                W* __restrict to) {
    with_type(x.type, [&](auto* type) {
        auto* from = static_cast<decltype(type)>(x.data) + first;
        W zero = x.zero;
        for (int64_t i = 0; i < n; ++i)
            to[i] += sign * ((static_cast<W>(from[i]) - zero) << left);
    });
}

template <class W>
inline void multiply(const Integers& x, int64_t first, int64_t n, W* __restrict to) {
    with_type(x.type, [&](auto* type) {
        auto* from = static_cast<decltype(type)>(x.data) + first;
        W zero = x.zero;
        for (int64_t i = 0; i < n; ++i) to[i] *= static_cast<W>(from[i]) - zero;
    });
}

template <class W>
void run(const IntegerSum& s, int64_t n, const Ending& to, int threads) {
    for_units(ceil_div(n, 8 * kEach), threads, n >= chosen(Choice::threaded_elements), [&](int64_t unit) {
        alignas(64) W sums[kEach];
        int64_t last = smaller(n, (unit + 1) * 8 * kEach);
        for (int64_t i = unit * 8 * kEach; i < last; i += kEach) {
            int64_t count = smaller(kEach, last - i);
            read(s.a, i, count, s.a_left, sums);
            if (s.b.data && s.sign) add(s.b, i, count, s.b_left, s.sign, sums);
            if (s.b.data && !s.sign) multiply(s.b, i, count, sums);
            end(to, sums, i, count);
        }
    });
}

}  // namespace

void integer_sum(const IntegerSum& s, int64_t n, const Ending& to, int threads) {
    narrow(s.largest, to.shift) ? run<int32_t>(s, n, to, threads) : run<int64_t>(s, n, to, threads);
}

}  // namespace blockscale::BLOCKSCALE_ISA
