// Codes of BITS beside one another: sums of what does not overlap, so that what all of them have
// too much is subtracted at once.
const EACH_BY_ONE: u32 = 1u + (1u << BITS) + (1u << (2u * BITS)) + (1u << (3u * BITS));

fn packed4(x: vec4<u32>) -> u32 {
    return x.x + (x.y << BITS) + (x.z << (2u * BITS)) + (x.w << (3u * BITS));
}
