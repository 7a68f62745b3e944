// Words of stored offsets, OFFSET_BITS each.
@group(0) @binding(offsets) var<storage, read_write> offsets: array<u32>;

fn put_offsets(place: u32, word: u32) {
    offsets[place] = word;
}
