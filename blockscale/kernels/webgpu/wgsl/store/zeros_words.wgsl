// Words of stored zero points, ZERO_BITS each.
@group(0) @binding(zeros) var<storage, read_write> zeros: array<u32>;

fn put_zeros(place: u32, word: u32) {
    zeros[place] = word;
}
