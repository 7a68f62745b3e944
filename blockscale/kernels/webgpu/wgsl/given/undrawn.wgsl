fn word_of(i: u32) -> u32 {
    return 0u;
}

fn words_of(i: u32) -> vec4<u32> {
    return vec4(0u);
}
