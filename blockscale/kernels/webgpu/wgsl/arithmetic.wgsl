// SPDX-License-Identifier: BSD-3-Clause
// Exact arithmetic on the bits of float32: from integers alone, for devices that flush subnormals
// or divide with an error, and by the device's own floats (native), where they are IEEE 754's.

//# integers/add
// fl(a + b), exact in every case, from integers alone.
// needs: bits/parts
fn add(a: u32, b: u32) -> u32 {
    let larger = select(b, a, (a & MAGNITUDE) >= (b & MAGNITUDE));
    let other = select(a, b, (a & MAGNITUDE) >= (b & MAGNITUDE));
    let x = larger & MAGNITUDE;
    let y = other & MAGNITUDE;
    let opposite = ((larger ^ other) & SIGN) != 0u;
    if (x >= INFINITY) {
        return select(larger, NAN, x > INFINITY || (y == INFINITY && opposite));
    }
    if (y == 0u) {
        return select(larger, larger & other, x == 0u);
    }
    let p = parts_of(x);
    let q = parts_of(y);
    let apart = min(u32(p.exponent - q.exponent), 31u);
    let moved = (q.mantissa << 7u) >> apart;
    let lost = u32((moved << apart) != (q.mantissa << 7u));
    let small = moved | lost;
    let whole = p.mantissa << 7u;
    let sum = select(whole + small, whole - small, opposite);
    if (sum == 0u) {
        return 0u;
    }
    return (larger & SIGN) | rounded_float(sum, p.exponent - 7);
}

fn subtract(a: u32, b: u32) -> u32 {
    return add(a, select(b ^ SIGN, NAN, is_nan(b)));
}

//# integers/divide
// fl(a / b), exact in every case, from integers alone.
// needs: bits/parts
fn divide(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & SIGN;
    let x = a & MAGNITUDE;
    let y = b & MAGNITUDE;
    if (max(x, y) > INFINITY || (x == y && (x == 0u || x == INFINITY))) {
        return NAN;
    }
    if (x == INFINITY || y == 0u) {
        return sign | INFINITY;
    }
    if (x == 0u || y == INFINITY) {
        return sign;
    }
    let p = parts_of(x);
    let q = parts_of(y);
    var rest = p.mantissa % q.mantissa;
    var quotient = p.mantissa / q.mantissa;
    for (var digit = 0u; digit < 5u; digit++) { // of six bits each: 31 bits in all
        quotient = (quotient << 6u) | ((rest << 6u) / q.mantissa);
        rest = (rest << 6u) % q.mantissa;
    }
    return sign | rounded_float(quotient | u32(rest != 0u), p.exponent - q.exponent - 30);
}

//# integers/multiply
// fl(a * b), exact in every case, from integers alone.
// needs: bits/parts, bits/wide
fn multiply(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & SIGN;
    let x = a & MAGNITUDE;
    let y = b & MAGNITUDE;
    if (max(x, y) >= INFINITY) {
        let bad = max(x, y) > INFINITY || min(x, y) == 0u;
        return select(sign | INFINITY, NAN, bad);
    }
    if (min(x, y) == 0u) {
        return sign;
    }
    let p = parts_of(x);
    let q = parts_of(y);
    let whole = wide_product(p.mantissa, q.mantissa);
    let top = (whole.y << 16u) | (whole.x >> 16u) | u32((whole.x & 0xffffu) != 0u);
    return sign | rounded_float(top, p.exponent + q.exponent + 16);
}

//# integers/quick_multiply
// needs: hardware/{hardware}, arithmetic/integers/multiply
// fl(a * b): the device's product of normal numbers where it is normal, else that of integers.
fn quick_multiply(a: u32, b: u32) -> u32 {
    let near = product(a, b);
    let a_field = (a >> 23u) & 0xffu;
    let b_field = (b >> 23u) & 0xffu;
    if (max(max(a_field, b_field) - 1u, min(a_field, b_field) - 1u) < 254u
        && ((near >> 23u) & 0xffu) - 2u < 252u) {
        return near;
    }
    return multiply(a, b);
}

//# integers/quotient
// needs: hardware/{hardware}, arithmetic/integers/divide, bits/corrected
// fl(x / step), where inverse = fl(1 / step) if the step is `ordinary`. A product is at most one
// ulp off.
fn quotient(x: u32, step: u32, inverse: u32, ordinary: bool) -> u32 {
    let near = product(x, inverse);
    if (!ordinary || !is_correctable(x, near)) {
        return rare_quotient(x, step, ordinary);
    }
    return corrected(x, near, step);
}

fn rare_quotient(x: u32, step: u32, ordinary: bool) -> u32 {
    if (ordinary && (x << 1u) == 0u) {
        return x ^ (step & 0x80000000u);
    }
    return divide(x, step);
}

//# integers/reciprocal
// needs: hardware/{hardware}
// fl(1 / x) of a number whose magnitude is 2^-120 … 2^120: the device's, put right by the remainder
// 2^47 - near * x in units of the last places, of which the last 32 bits say all.
fn reciprocal(x: u32) -> u32 {
    let mantissa = (x & 0x7fffffu) | 0x800000u;
    let field = (x >> 23u) & 0xffu;
    if (mantissa == 0x800000u) {
        return (x & 0x80000000u) | ((254u - field) << 23u);
    }
    let binade = (253u - field) << 23u; // of the result
    var near = clamp(ratio(0x3f800000u, x & 0x7fffffffu), binade, binade + 0x7fffffu);
    var rest = 0 - i32(((near & 0x7fffffu) | 0x800000u) * mantissa);
    for (var i = 0u; i < 3u; i++) { // WGSL's division may be off by 2.5 ulps
        let more = i32(2 * rest > i32(mantissa)) - i32(2 * rest < -i32(mantissa));
        near += u32(more);
        rest -= more * i32(mantissa);
    }
    return (x & 0x80000000u) | near;
}

//# native/add
// needs: arithmetic/native/float
fn add(a: u32, b: u32) -> u32 {
    return canonical(bitcast<f32>(a) + bitcast<f32>(b));
}

fn subtract(a: u32, b: u32) -> u32 {
    return canonical(bitcast<f32>(a) - bitcast<f32>(b));
}

//# native/divide
// needs: arithmetic/native/float
fn divide(a: u32, b: u32) -> u32 {
    return canonical(bitcast<f32>(a) / bitcast<f32>(b));
}

//# native/float
// The device's own floats, where it rounds them as IEEE 754 says (gpu/probe.py).
// needs: bits/parts
fn canonical(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits, NAN, is_nan(bits)); // devices differ in which NaN
}

//# native/multiply
// needs: arithmetic/native/float
fn multiply(a: u32, b: u32) -> u32 {
    return canonical(bitcast<f32>(a) * bitcast<f32>(b));
}

//# native/quick_multiply
// needs: hardware/{hardware}, arithmetic/native/multiply
fn quick_multiply(a: u32, b: u32) -> u32 {
    return multiply(a, b);
}

//# native/quotient
// needs: hardware/{hardware}, arithmetic/native/divide
fn quotient(x: u32, step: u32, inverse: u32, ordinary: bool) -> u32 {
    return divide(x, step);
}

//# native/reciprocal
// needs: hardware/{hardware}, arithmetic/native/divide
fn reciprocal(x: u32) -> u32 {
    return divide(ONE, x);
}
