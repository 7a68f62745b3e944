// Numbers in a texture, widened to float32 bits; i counts elements in rows of sizes.width.
// needs: float/{dtype}
@group(0) @binding(x) var x: texture_3d<u32>;

fn load4(quad: u32) -> vec4<u32> {
    if (sizes.width % 4u == 0u) {
        let four = texel_of(quad * 4u);
        return vec4(widen(four.x), widen(four.y), widen(four.z), widen(four.w));
    }
    let i = quad * 4u;
    return vec4(load1(i), load1(i + 1u), load1(i + 2u), load1(i + 3u));
}

fn load1(i: u32) -> u32 {
    return widen(texel_of(i)[i % sizes.width % 4u]);
}

fn texel_of(i: u32) -> vec4<u32> {
    let row = i / sizes.width;
    return textureLoad(x, vec3(i % sizes.width / 4u, row % sizes.height, row / sizes.height), 0);
}
