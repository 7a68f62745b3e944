// Packed codes as fours of words.
@group(0) @binding(codes) var<storage, read_write> codes: array<vec4<u32>>;

fn put_word(place: u32, word: u32) {
    codes[place / 4u][place % 4u] = word;
}

fn put_two(place: u32, first: u32, second: u32) {
    put_word(2u * place, first);
    put_word(2u * place + 1u, second);
}

fn put_four(place: u32, words: vec4<u32>) {
    codes[place] = words;
}
