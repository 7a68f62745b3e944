// Numbers of 32 bits as they are.
@group(0) @binding(x) var<storage, read> x: array<vec4<u32>>;

fn load4(quad: u32) -> vec4<u32> {
    return x[quad];
}

fn load1(i: u32) -> u32 {
    return x[i / 4u][i % 4u];
}
