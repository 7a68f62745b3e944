// An invocation's numbers, kept from the first reading of a block to the second.
var<private> held: array<vec4<u32>, QUADS>;

fn read_first(quad: u32, at: u32) -> vec4<u32> {
    held[quad] = load4(at);
    return held[quad];
}

fn read_again(quad: u32, at: u32) -> vec4<u32> {
    return held[quad];
}
