// Numbers -> the values of their codes.
// needs: float/{dtype}, code/{how}
fn results_of(x: vec4<u32>, s: Step, words: vec4<u32>) -> vec4<u32> {
    let wide = vec4(widen(x.x), widen(x.y), widen(x.z), widen(x.w));
    let found = four_values(four_codes(wide, s, words), s);
    return vec4(narrow(found.x), narrow(found.y), narrow(found.z), narrow(found.w));
}

fn result_of(x: u32, s: Step, word: u32) -> u32 {
    return narrow(value_of(code_of(widen(x), s, word), s));
}
