// Finite values, to nearest, ties to even.
fn half_of(x: vec4<u32>) -> vec4<u32> {
    return x + vec4(0x7fffu) + ((x >> vec4(16u)) & vec4(1u));
}

fn narrowed8(low: vec4<u32>, high: vec4<u32>) -> vec4<u32> {
    let a = half_of(low);
    let b = half_of(high);
    return vec4((a.x >> 16u) | (a.y & 0xffff0000u), (a.z >> 16u) | (a.w & 0xffff0000u),
                (b.x >> 16u) | (b.y & 0xffff0000u), (b.z >> 16u) | (b.w & 0xffff0000u));
}
