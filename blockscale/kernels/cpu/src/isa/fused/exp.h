// exp of a vector of float32, within 2 units in the last place.
#pragma once

#include "../linear/vector.h"

namespace blockscale::BLOCKSCALE_ISA {
namespace {

typedef int32_t Whole __attribute__((vector_size(4 * kFloats)));

// x <= 88. Below -87.3 the result, which would be subnormal, is 0; NaN stays.
//
// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2: Cody and Waite's reduction with ln 2 in
// two parts, and the Taylor series of exp(r) up to r^7, whose rest is below 2^-27.
inline Vector exp_of(Vector x) {
    const Vector magic = all(kMagic);
    const Vector lowest = all(-87.3f);
    Vector bounded = x > lowest ? x : lowest;  // NaN too
    Vector big = multiply_add(bounded, all(1.44269504f), magic), n = big - magic;
    Vector r = multiply_add(n, all(-0.693359375f), bounded);
    r = multiply_add(n, all(2.12194440e-4f), r);
    Vector y = all(1.0f / 5040);
    y = multiply_add(y, r, all(1.0f / 720));
    y = multiply_add(y, r, all(1.0f / 120));
    y = multiply_add(y, r, all(1.0f / 24));
    y = multiply_add(y, r, all(1.0f / 6));
    y = multiply_add(y, r, all(0.5f));
    y = multiply_add(y, r, all(1.0f));
    y = multiply_add(y, r, all(1.0f));
    Whole power = ((Whole)big - (Whole)magic) << 23;  // into the exponent's field
    y = (Vector)((Whole)y + power);
    y = x < lowest ? Vector{} : y;
    return x == x ? y : x;
}

}  // namespace
}  // namespace blockscale::BLOCKSCALE_ISA
