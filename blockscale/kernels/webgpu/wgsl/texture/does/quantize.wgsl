// Numbers -> their codes.
// needs: float/{dtype}, code/{how}
fn results_of(x: vec4<u32>, s: Step, words: vec4<u32>) -> vec4<u32> {
    return four_codes(vec4(widen(x.x), widen(x.y), widen(x.z), widen(x.w)), s, words);
}

fn result_of(x: u32, s: Step, word: u32) -> u32 {
    return code_of(widen(x), s, word);
}
