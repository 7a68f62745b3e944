// SPDX-License-Identifier: BSD-3-Clause
// The float operations of the device, and of one that takes every liberty, for tests.

//# flushing
// The float operations of a device that takes every liberty: what tests run on a stricter one.
// needs: hardware/fours
fn flushed(x: u32) -> u32 {
    return select(x, x & 0x80000000u, (x & 0x7f800000u) == 0u);
}

fn all_flushed(x: vec4<u32>) -> vec4<u32> {
    return vec4(flushed(x.x), flushed(x.y), flushed(x.z), flushed(x.w));
}

fn product(a: u32, b: u32) -> u32 {
    return flushed(bitcast<u32>(bitcast<f32>(flushed(a)) * bitcast<f32>(flushed(b))));
}

fn sum(a: u32, b: u32) -> u32 {
    return flushed(bitcast<u32>(bitcast<f32>(flushed(a)) + bitcast<f32>(flushed(b))));
}

fn ratio(a: u32, b: u32) -> u32 {
    let near = bitcast<u32>(bitcast<f32>(flushed(a)) / bitcast<f32>(flushed(b)));
    let off = ((a ^ (b >> 3u) ^ (b >> 7u)) % 5u); // two ulps to either side
    return flushed(near + off - 2u);
}

fn four_products(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let found = bitcast<vec4<f32>>(all_flushed(a)) * bitcast<vec4<f32>>(all_flushed(b));
    return all_flushed(bitcast<vec4<u32>>(found));
}

fn four_sums(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let found = bitcast<vec4<f32>>(all_flushed(a)) + bitcast<vec4<f32>>(all_flushed(b));
    return all_flushed(bitcast<vec4<u32>>(found));
}

fn four_least(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let found = min(bitcast<vec4<f32>>(all_flushed(a)), bitcast<vec4<f32>>(all_flushed(b)));
    return all_flushed(bitcast<vec4<u32>>(found));
}

fn four_most(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let found = max(bitcast<vec4<f32>>(all_flushed(a)), bitcast<vec4<f32>>(all_flushed(b)));
    return all_flushed(bitcast<vec4<u32>>(found));
}

fn four_sizes(x: vec4<u32>) -> vec4<u32> {
    return all_flushed(x) & vec4(0x7fffffffu);
}

//# fours
// Whether a sum of four magnitudes is finite, as it is if they are, but for the largest numbers.
fn finite_together(x: vec4<u32>) -> bool {
    let size = bitcast<vec4<f32>>(x & vec4(0x7fffffffu));
    return bitcast<u32>((size.x + size.y) + (size.z + size.w)) < 0x7f800000u;
}

fn smallest_of_four(x: vec4<u32>) -> u32 {
    return min(min(x.x, x.y), min(x.z, x.w));
}

fn largest_of_four(x: vec4<u32>) -> u32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

//# plain
// The float operations of the device. Only on normal numbers with normal results are a product and
// a sum exact everywhere; a ratio is off by some ulps. Where a product may meet a sum, so that a
// device rounds once and not twice, callers do not mind.
// needs: hardware/fours
fn product(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) * bitcast<f32>(b));
}

fn sum(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}

fn ratio(a: u32, b: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(a) / bitcast<f32>(b));
}

fn four_products(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(bitcast<vec4<f32>>(a) * bitcast<vec4<f32>>(b));
}

fn four_sums(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(bitcast<vec4<f32>>(a) + bitcast<vec4<f32>>(b));
}

fn four_least(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(min(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b)));
}

fn four_most(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(max(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b)));
}

fn four_sizes(x: vec4<u32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(abs(bitcast<vec4<f32>>(x)));
}
