// A gradient where its number is in range, else 0, in words of GRADIENT_BITS an element.
// needs: code/{how}, inside/{ends}
@group(0) @binding(gradient) var<storage, read> gradient: array<u32>;
@group(0) @binding(values) var<storage, read_write> values: array<u32>;

struct Written {
    nothing: u32,
}

fn written_from(i: u32) -> Written {
    return Written(0u);
}

// All ones where a gradient passes.
fn made4(x: vec4<u32>, s: Step, i: u32) -> vec4<u32> {
    let passes = vec4(inside(in_steps(x.x, s), s), inside(in_steps(x.y, s), s),
                      inside(in_steps(x.z, s), s), inside(in_steps(x.w, s), s));
    return select(vec4(0u), vec4(0xffffffffu), passes);
}

fn put4(w: Written, i: u32, four: vec4<u32>) -> Written {
    if (GRADIENT_BITS == 32u) {
        for (var j = 0u; j < 4u && i + j < sizes.bound; j++) {
            values[i + j] = gradient[i + j] & four[j];
        }
        return w;
    }
    for (var j = 0u; j < 2u && i + 2u * j < sizes.bound; j++) {
        let mask = (four[2u * j] & 0xffffu) | (four[2u * j + 1u] << 16u);
        values[i / 2u + j] = gradient[i / 2u + j] & mask;
    }
    return w;
}
