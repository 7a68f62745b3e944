// SPDX-License-Identifier: BSD-3-Clause
// Functions of one element or of two, one for each op of torch.

//# binary/add
// fl(a + b): the device's where that is exact, else from integers.
// needs: hardware/{hardware}, arithmetic/{arithmetic}/add, torch/math/normal
fn of_two(a: u32, b: u32) -> u32 {
    let near = sum(a, b);
    if (normal(a) && normal(b) && normal(near)) {
        return near;
    }
    return add(a, b);
}

//# binary/div
// fl(a / b): a product with the reciprocal put right by integers, else a division of integers.
// needs: arithmetic/{arithmetic}/quotient, arithmetic/{arithmetic}/reciprocal
// needs: arithmetic/{arithmetic}/divide
fn of_two(a: u32, b: u32) -> u32 {
    let field = (b >> 23u) & 0xffu;
    if (field - 27u <= 200u) { // 2^-100 … 2^100
        return quotient(a, b, reciprocal(b), true);
    }
    return divide(a, b);
}

//# binary/join_sums
// A sum within a longer one, whose order is free: the device's own.
fn of_two(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}

//# binary/maximum
// needs: torch/math/order
fn of_two(a: u32, b: u32) -> u32 {
    if (either_nan(a, b)) {
        return 0x7fc00000u;
    }
    return select(b, a, order(a) > order(b));
}

//# binary/minimum
// needs: torch/math/order
fn of_two(a: u32, b: u32) -> u32 {
    if (either_nan(a, b)) {
        return 0x7fc00000u;
    }
    return select(b, a, order(b) > order(a));
}

//# binary/mul
// fl(a * b): the device's where that is exact, else from integers.
// needs: hardware/{hardware}, arithmetic/{arithmetic}/multiply, torch/math/normal
fn of_two(a: u32, b: u32) -> u32 {
    let near = product(a, b);
    if (normal(a) && normal(b) && normal(near)) {
        return near;
    }
    return multiply(a, b);
}

//# binary/sub
// fl(a - b): the device's where that is exact, else from integers.
// needs: hardware/{hardware}, arithmetic/{arithmetic}/add, torch/math/normal
fn of_two(a: u32, b: u32) -> u32 {
    let near = sum(a, b ^ 0x80000000u);
    if (normal(a) && normal(b) && normal(near)) {
        return near;
    }
    return subtract(a, b);
}

//# compare/at_most
// needs: torch/math/order
fn holds(a: u32, b: u32) -> bool {
    return !either_nan(a, b) && order(a) <= order(b);
}

//# compare/equal
// needs: torch/math/order
fn holds(a: u32, b: u32) -> bool {
    return !either_nan(a, b) && order(a) == order(b);
}

//# compare/less
// needs: torch/math/order
fn holds(a: u32, b: u32) -> bool {
    return !either_nan(a, b) && order(a) < order(b);
}

//# compare/unequal
// needs: torch/math/order
fn holds(a: u32, b: u32) -> bool {
    return either_nan(a, b) || order(a) != order(b);
}

//# integers/add
// needs: bits/wide
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return wide_sum(a, b);
}

//# integers/at_most
// needs: torch/math/integer_order
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(u32(!below(b, a)), 0u);
}

//# integers/both
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return a & b;
}

//# integers/differ
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return a ^ b;
}

//# integers/either
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return a | b;
}

//# integers/equal
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(u32(all(a == b)), 0u);
}

//# integers/less
// needs: torch/math/integer_order
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(u32(below(a, b)), 0u);
}

//# integers/maximum
// needs: torch/math/integer_order
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, below(a, b));
}

//# integers/minimum
// needs: torch/math/integer_order
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, below(b, a));
}

//# integers/mul
// needs: bits/wide
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = wide_product(a.x, b.x);
    return vec2(low.x, low.y + a.x * b.y + a.y * b.x);
}

//# integers/sub
// needs: bits/wide
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return wide_sum(a, wide_sum(~b, vec2(1u, 0u)));
}

//# integers/unequal
fn of_two(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(u32(any(a != b)), 0u);
}

//# unary/abs
fn of_one(x: u32) -> u32 {
    return x & 0x7fffffffu;
}

//# unary/clamp
// needs: torch/math/order
fn of_one(x: u32) -> u32 {
    if (order(x) < order(sizes.low)) {
        return sizes.low;
    }
    return select(x, sizes.high, order(x) > order(sizes.high));
}

//# unary/erf
// needs: torch/math/error_function
fn of_one(x: u32) -> u32 {
    let size = x & 0x7fffffffu;
    if (size < 0x3f800000u) {
        return bits_of(float_of(x) * odd(size));
    }
    return bits_of(1.0 - complement(size)) | (x & 0x80000000u);
}

//# unary/exp
// needs: torch/math/exponential
fn of_one(x: u32) -> u32 {
    return bits_of(exponential(x));
}

//# unary/gelu
// needs: torch/math/error_function
fn of_one(x: u32) -> u32 {
    if (x == 0xff800000u) { // -inf times 0
        return NAN;
    }
    let half = 0.5 * float_of(x);
    let rest = complement(bits_of(abs(float_of(x)) * 0.70710678));
    if (x >> 31u == 0u) { // x, less what is missing to it
        return select(bits_of(half * (2.0 - rest)), x, x == INFINITY);
    }
    return select(bits_of(half * rest), 0x80000000u, rest == 0.0);
}

//# unary/gelu_tanh
// needs: torch/math/tangent
fn of_one(x: u32) -> u32 {
    if (x == 0xff800000u) { // -inf times 0
        return NAN;
    }
    if ((x & 0x7fffffffu) > 0x42000000u) { // beyond 32 it is x or 0
        return select(x, 0x80000000u, x >> 31u == 1u);
    }
    let value = float_of(x);
    let inner = 0.7978845608 * (value + 0.044715 * value * value * value);
    return bits_of(0.5 * value * (1.0 + tangent(bits_of(inner))));
}

//# unary/leaky_relu
// needs: torch/math/float_of
fn of_one(x: u32) -> u32 {
    return select(x, bits_of(float_of(x) * float_of(sizes.number)), x >> 31u == 1u);
}

//# unary/log
// needs: torch/math/order, torch/math/float_of
fn of_one(x: u32) -> u32 {
    if (order(x) < 0) {
        return NAN;
    }
    if ((x & 0x7fffffffu) == 0u) {
        return 0xff800000u;
    }
    if (x < 0x800000u) { // subnormal, which devices take for 0
        return bits_of(log(f32(x)) - 103.27893);
    }
    return select(bits_of(log(float_of(x))), INFINITY, x == INFINITY);
}

//# unary/neg
fn of_one(x: u32) -> u32 {
    return x ^ 0x80000000u;
}

//# unary/reciprocal
// fl(1 / x), exact as divisions are.
// needs: arithmetic/{arithmetic}/divide
fn of_one(x: u32) -> u32 {
    return divide(ONE, x);
}

//# unary/relu
fn of_one(x: u32) -> u32 {
    return select(x, 0u, x >> 31u == 1u);
}

//# unary/rsqrt
// needs: torch/math/order, torch/math/float_of
fn of_one(x: u32) -> u32 {
    if (order(x) < 0) {
        return NAN;
    }
    if ((x << 1u) == 0u) {
        return INFINITY | x;
    }
    return select(bits_of(1.0 / sqrt(float_of(x))), 0u, x == INFINITY);
}

//# unary/sigmoid
// needs: torch/math/logistic
fn of_one(x: u32) -> u32 {
    return bits_of(logistic(x));
}

//# unary/silu
// needs: torch/math/logistic
fn of_one(x: u32) -> u32 {
    if (x == 0xff800000u) { // -inf times 0
        return NAN;
    }
    return bits_of(float_of(x) * logistic(x));
}

//# unary/sqrt
// needs: torch/math/order, torch/math/float_of
fn of_one(x: u32) -> u32 {
    if (order(x) < 0) {
        return NAN;
    }
    return select(bits_of(sqrt(float_of(x))), x, (x << 1u) == 0u || x == INFINITY);
}

//# unary/tanh
// needs: torch/math/tangent
fn of_one(x: u32) -> u32 {
    return bits_of(tangent(x));
}
