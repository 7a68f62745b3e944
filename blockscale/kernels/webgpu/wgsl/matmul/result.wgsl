// Where results go. RESULT_STORAGE: as in bits/storage. Two numbers of 16 bits share a word: then
// pairs begin at even places.
// needs: bits/storage
@group(0) @binding(y) var<storage, read_write> y: array<u32>;

fn store_pair(place: u32, first: u32, second: u32, both: bool) {
    if (RESULT_STORAGE != 0u) {
        y[place / 2u] = narrowed(first, RESULT_STORAGE) | narrowed(second, RESULT_STORAGE) << 16u;
        return;
    }
    y[place] = first;
    if (both) {
        y[place + 1u] = second;
    }
}
