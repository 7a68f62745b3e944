// Results in the left factor's own type: two float16 or bfloat16 share a word, so outputs are even.
// needs: float/{float}
@group(0) @binding(y) var<storage, read_write> y: array<u32>;

fn store_pair(place: u32, first: u32, second: u32, both: bool) {
    if (FLOAT_BITS == 16u) {
        y[place / 2u] = narrow(first) | narrow(second) << 16u;
        return;
    }
    y[place] = first;
    if (both) {
        y[place + 1u] = second;
    }
}
