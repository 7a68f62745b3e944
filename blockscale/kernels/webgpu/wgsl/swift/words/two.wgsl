// Packed codes as pairs of words.
@group(0) @binding(codes) var<storage, read_write> codes: array<vec2<u32>>;

fn put_word(place: u32, word: u32) {
    codes[place / 2u][place % 2u] = word;
}

fn put_two(place: u32, first: u32, second: u32) {
    codes[place] = vec2(first, second);
}

fn put_four(place: u32, words: vec4<u32>) {
    codes[2u * place] = words.xy;
    codes[2u * place + 1u] = words.zw;
}
