// The left factor: numbers as the bits of float32. LEFT_STORAGE: as in bits/storage.
// needs: bits/storage
@group(0) @binding(x) var<storage, read> x: array<u32>;

// Of row m, column k, in the batch's matrix of this number.
fn left_of(batch: u32, m: u32, k: u32) -> u32 {
    let place = sizes.left_start + batch * sizes.left_batch + m * sizes.left_row
        + k * sizes.left_column;
    if (LEFT_STORAGE == 0u) {
        return x[place];
    }
    return widened(x[place / 2u] >> (place % 2u * 16u) & 0xffffu, LEFT_STORAGE);
}
