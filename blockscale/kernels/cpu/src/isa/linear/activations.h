// SPDX-License-Identifier: BSD-3-Clause
// Activations of 4, 8 or 16 numbers. relu, relu6 and hardswish have torch's bits. How far the others are
// from the exact value stands beside them; tests/kernels/cpu/test_activate.py holds them to it.
#pragma once

#include "vector.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

// By Horner's rule, the coefficient of the highest power first.
template <int N>
inline Vector polynomial(Vector x, const float (&of)[N]) {
    Vector p = all(of[0]);
#pragma GCC unroll 16
    for (int i = 1; i < N; ++i) p = multiply_add(p, x, all(of[i]));
    return p;
}

// e^x. 2^n times a polynomial (that of Cephes' expf) on [-ln 2 / 2, ln 2 / 2]; two factors, so that
// results may be subnormal or infinite.
inline Vector exponential(Vector x) {
    x = greatest(all(-104.0f), least(all(89.0f), x));  // NaN stays
    Vector sum = multiply_add(x, all(1.44269504f), all(kMagic)), n = sum - all(kMagic);
    Vector r = multiply_add(n, all(-0.693359375f), x);
    r = multiply_add(n, all(2.12194440e-4f), r);
    constexpr float kOf[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                             4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    Vector p = multiply_add(polynomial(r, kOf), r * r, r) + 1.0f;
    Ints exponent = (Ints)sum - (Ints)all(kMagic), half = exponent >> 1;
    return p * (Vector)((half + 127) << 23) * (Vector)((exponent - half + 127) << 23);
}

// Relative error below 4 * 2^-24.
inline Vector sigmoid(Vector x) {
    Vector e = exponential(-magnitude(x)), d = 1.0f / (1.0f + e);
    return x >= 0.0f ? d : e * d;
}

// Relative error below 5 * 2^-24.
inline Vector silu(Vector x) { return x * sigmoid(x); }

// Relative error below 3 * 2^-24. Cephes' tanhf.
inline Vector tangent(Vector x) {
    constexpr float kOf[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                             1.33314422036e-1f, -3.33332819422e-1f};
    Vector z = x * x, size = magnitude(x), p = multiply_add(polynomial(z, kOf) * z, x, x);
    Vector far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    return size_and_sign(size < 0.625f ? p : far, x);  // of 0, too
}

// x * Phi(x). Phi(x) - 1/2 is x times a polynomial in x^2 (fitted to scipy's erf for the least largest
// error of the product); beyond 5.25 it is 1/2. Error below 3 * 2^-24 * |x|, as torch's own.
inline Vector gelu(Vector x) {
    constexpr float kEnd = 5.25f;
    constexpr float kOf[] = {0x1.f73630p-13f, -0x1.583d30p-11f, 0x1.5c82e4p-11f, -0x1.1081fcp-10f,
                             0x1.7b1b86p-9f,  -0x1.6512fep-8f,  0x1.13d638p-7f,  -0x1.a29e92p-7f,
                             0x1.2fbcbap-6f,  -0x1.9a497ap-6f,  0x1.0666ccp-5f,  -0x1.45bdecp-5f,
                             0x1.96b2c2p-5f,  -0x1.12f392p-4f,  0x1.13c848p-3f};
    Vector w = multiply_add(x * x, all(2.0f / (kEnd * kEnd)), all(-1.0f));
    Vector inside = polynomial(w, kOf) * x;
    Vector half = magnitude(x) > kEnd ? size_and_sign(all(0.5f), x) : inside;
    return x * (half + 0.5f);
}

// x * (1 + tanh(u)) / 2 = x * sigmoid(2 u). Error below 3 * 2^-24 * |x|.
inline Vector gelu_tanh(Vector x) {
    constexpr float kTwice = 1.5957691216057308f;  // 2 sqrt(2 / pi)
    return x * sigmoid(kTwice * multiply_add(all(0.044715f), x * x * x, x));
}

// As torch rounds it: x * min(max(x + 3, 0), 6) / 6.
inline Vector hardswish(Vector x) {
    return x * least(all(6.0f), greatest(all(0.0f), x + 3.0f)) / 6.0f;
}

inline Vector relu(Vector x) { return greatest(all(0.0f), x); }

inline Vector relu6(Vector x) { return least(all(6.0f), relu(x)); }

// The same of n numbers in place; up to kFloats - 1 entries beyond them are overwritten.
template <class F>
inline void activate_with(float* y, int64_t n, F f) {
    for (int64_t i = 0; i < n; i += kFloats) store(y + i, f(load(y + i)));
}

inline void activate_whole(Activation activation, float* y, int64_t n) {
    switch (activation) {
        case Activation::none: return;
        case Activation::relu: return activate_with(y, n, relu);
        case Activation::relu6: return activate_with(y, n, relu6);
        case Activation::gelu: return activate_with(y, n, gelu);
        case Activation::gelu_tanh: return activate_with(y, n, gelu_tanh);
        case Activation::silu: return activate_with(y, n, silu);
        case Activation::hardswish: return activate_with(y, n, hardswish);
        case Activation::sigmoid: return activate_with(y, n, sigmoid);
        case Activation::tanh: return activate_with(y, n, tangent);
    }
    __builtin_unreachable();
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
