// Values of a chunk after a round trip.
// needs: code/{how}, given/{drawn}, store/{store}
struct Written {
    nothing: u32,
}

fn written_from(i: u32) -> Written {
    return Written(0u);
}

fn made4(x: vec4<u32>, s: Step, i: u32) -> vec4<u32> {
    return four_values(four_codes(x, s, words_of(sizes.first + i)), s);
}

fn put4(w: Written, i: u32, four: vec4<u32>) -> Written {
    if (i < sizes.bound) {
        store4(i / 4u, four);
    }
    return w;
}
