// Block scales stored as a byte: an exponent, or a code.
@group(0) @binding(scale) var<storage, read> scale: array<u32>;

fn scale_of(block: u32) -> u32 {
    return scale[block / 4u] >> (block % 4u * 8u) & 0xffu;
}
