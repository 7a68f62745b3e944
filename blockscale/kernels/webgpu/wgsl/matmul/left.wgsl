// The left factor: its number at a place counted in numbers, as the bits of a float32.
// needs: float/{float}
@group(0) @binding(x) var<storage, read> x: array<u32>;

fn left_at(place: u32) -> u32 {
    if (FLOAT_BITS == 32u) {
        return widen(x[place]);
    }
    return widen(x[place / 2u] >> (place % 2u * 16u) & 0xffffu);
}

// Of row m, column k, in the batch's matrix of this number.
fn left_of(batch: u32, m: u32, k: u32) -> u32 {
    return left_at(batch * sizes.left_batch + m * sizes.left_row + k * sizes.left_column);
}
