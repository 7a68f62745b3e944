// Words of stored scales, SCALE_BITS each.
@group(0) @binding(scales) var<storage, read_write> scales: array<u32>;

fn put_scales(place: u32, word: u32) {
    scales[place] = word;
}
