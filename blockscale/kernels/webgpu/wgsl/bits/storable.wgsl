// needs: bits/storage
// A quotient's magnitude -> the scale that is stored for it, as a float32 (3.3). `storage`: as in
// bits/storage
fn storable(size: u32, storage: u32) -> u32 {
    let near = widened(narrowed(size, storage), storage);
    if (storage == 1u) {
        return clamp(near, 0x33800000u, 0x477fe000u); // 2^-24, 65504
    }
    return clamp(near, 0x00800000u, select(0x7f7fffffu, 0x7f7f0000u, storage == 2u));
}

// A number of any size and sign -> the nearest of the type, of at most its largest magnitude.
fn storable_signed(x: u32, storage: u32) -> u32 {
    let size = x & 0x7fffffffu;
    let largest = select(select(0x7f7fffffu, 0x7f7f0000u, storage == 2u), 0x477fe000u,
                         storage == 1u);
    return (x & 0x80000000u) | min(widened(narrowed(min(size, largest), storage), storage), largest);
}
