// Packed codes as words.
@group(0) @binding(codes) var<storage, read_write> codes: array<u32>;

fn put_word(place: u32, word: u32) {
    codes[place] = word;
}

fn put_two(place: u32, first: u32, second: u32) {
    codes[2u * place] = first;
    codes[2u * place + 1u] = second;
}

fn put_four(place: u32, words: vec4<u32>) {
    put_two(2u * place, words.x, words.y);
    put_two(2u * place + 1u, words.z, words.w);
}
