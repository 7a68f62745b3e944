// Values that are bfloat16 already.
fn narrowed8(low: vec4<u32>, high: vec4<u32>) -> vec4<u32> {
    return vec4((low.x >> 16u) | (low.y & 0xffff0000u), (low.z >> 16u) | (low.w & 0xffff0000u),
                (high.x >> 16u) | (high.y & 0xffff0000u), (high.z >> 16u) | (high.w & 0xffff0000u));
}
