fn narrowed8(low: vec4<u32>, high: vec4<u32>) -> vec4<u32> {
    return low;
}
