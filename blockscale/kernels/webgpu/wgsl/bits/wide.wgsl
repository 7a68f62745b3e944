// Whole numbers of 64 bits: (low word, high word).
// needs: bits/parts
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
    return vec2<u32>((second << 16u) | (low & 0xffffu), high);
}

fn wide_sum(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}

// The nearest float32.
fn wide_to_float(a: vec2<u32>) -> u32 {
    if (a.y == 0u) {
        return rounded_float(a.x, 0);
    }
    let lead = countLeadingZeros(a.y);
    let top = (a.y << lead) | select(a.x >> (32u - lead), 0u, lead == 0u);
    return rounded_float(top | u32((a.x << lead) != 0u), 32 - i32(lead));
}
