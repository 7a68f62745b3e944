// Results as float32, whatever the factors are.
@group(0) @binding(y) var<storage, read_write> y: array<u32>;

fn store_pair(place: u32, first: u32, second: u32, both: bool) {
    y[place] = first;
    if (both) {
        y[place + 1u] = second;
    }
}
